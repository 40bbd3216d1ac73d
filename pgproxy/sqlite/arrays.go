package sqlite

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// OIDs of arrays (pg_type.dat).
const (
	oidTextArray  = 1009
	oidInt2Vector = 22
)

// arrayTypes maps the type of an element to the type of its array, for the supported arrays.
var arrayTypes = map[uint32]uint32{
	oidBool: 1000, oidBytea: 1001, oidChar: 1002, oidName: 1003, oidInt2: 1005, oidInt4: 1007, oidText: oidTextArray, oidBpchar: 1014, oidVarchar: 1015, oidInt8: 1016,
	oidFloat4: 1021, oidFloat8: 1022, oidOID: 1028, oidTimestamp: 1115, oidDate: 1182, oidTime: 1183, oidTimestamptz: 1185, oidNumeric: 1231,
	oidUUID: 2951, oidJSON: 199, oidJSONB: 3807,
}

// elementTypes is the inverse of arrayTypes.
var elementTypes = func() map[uint32]uint32 {
	m := map[uint32]uint32{}
	for element, array := range arrayTypes {
		m[array] = element
	}
	return m
}()

// arrayOf returns the type of an array with such elements, text[] for unknown elements.
func arrayOf(element uint32) uint32 {
	if oid, ok := arrayTypes[element]; ok {
		return oid
	}
	return oidTextArray
}

// elementOf returns the element type of an array type, unspecified for other types.
func elementOf(oid uint32) uint32 {
	if oid == oidInt2Vector {
		return oidInt2
	}
	return elementTypes[oid]
}

// maxElements bounds the elements of an array, including one made by a function. Each takes a few dozen bytes while the
// array is read.
const maxElements = 1 << 20

var (
	errArray      = errors.New("malformed array")
	errDimensions = errors.New("arrays of arrays are not supported")
	errElements   = fmt.Errorf("more than %d elements", maxElements)
)

// parseArray reads an array in PostgreSQL's or JSON's notation, or a vector of integers ("1 2"). NULL elements are nil.
func parseArray(s string) ([]any, error) {
	s = strings.TrimSpace(s)
	switch {
	case strings.HasPrefix(s, "["):
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		var list []any
		if err := d.Decode(&list); err != nil {
			return nil, errArray
		}
		if len(list) > maxElements {
			return nil, errElements
		}
		return list, nil
	case !strings.HasPrefix(s, "{"):
		var list []any
		for _, word := range strings.Fields(s) {
			if _, err := strconv.ParseInt(word, 10, 64); err != nil {
				return nil, errArray
			}
			list = append(list, json.Number(word))
		}
		return list, nil
	}
	return parseBraces(s)
}

// parseBraces reads {a,"b",NULL}.
func parseBraces(s string) ([]any, error) {
	list := []any{}
	if !strings.HasSuffix(s, "}") {
		return nil, errArray
	}
	if s = s[1 : len(s)-1]; strings.TrimSpace(s) == "" {
		return list, nil
	}
	for {
		if len(list) == maxElements {
			return nil, errElements
		}
		element, rest, err := nextElement(strings.TrimLeft(s, " "))
		if err != nil {
			return nil, err
		}
		list = append(list, element)
		if rest = strings.TrimLeft(rest, " "); rest == "" {
			return list, nil
		}
		if rest[0] != ',' {
			return nil, errArray
		}
		s = rest[1:]
	}
}

// nextElement reads the element that s begins with.
func nextElement(s string) (element any, rest string, err error) {
	if strings.HasPrefix(s, "{") {
		return nil, "", errDimensions
	}
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexByte(s, ',')
		if end < 0 {
			end = len(s)
		}
		word := strings.TrimSpace(s[:end])
		if word == "" || strings.ContainsAny(word, `{}"`) {
			return nil, "", errArray
		}
		if strings.EqualFold(word, "NULL") {
			return nil, s[end:], nil
		}
		return strings.ReplaceAll(word, `\`, ""), s[end:], nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], nil
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return nil, "", errArray
}

// elementText returns an element in PostgreSQL's text format.
func elementText(element any, oid uint32) string {
	switch v := element.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)[:1]
	case json.Number:
		if oid == oidBool {
			return strconv.FormatBool(v != "0")[:1]
		}
		return v.String()
	}
	text, _ := json.Marshal(element)
	return string(text)
}

// appendArray appends an array in PostgreSQL's text format.
func appendArray(dst []byte, list []any, element uint32) []byte {
	dst = append(dst, '{')
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if e == nil {
			dst = append(dst, "NULL"...)
			continue
		}
		text := elementText(e, element)
		if text != "" && !strings.ContainsAny(text, "{},\"\\ \t\n\r\v\f") && !strings.EqualFold(text, "null") {
			dst = append(dst, text...)
			continue
		}
		dst = append(dst, '"')
		dst = append(dst, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)...)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// encodeArray appends v as an array of type oid. ok is false if v is not an array.
func encodeArray(dst []byte, v value, oid uint32, format int16) (out []byte, ok bool) {
	if v.typ != sqlite.TypeText {
		return dst, false
	}
	list, err := parseArray(string(v.text))
	if err != nil {
		return dst, false
	}
	if oid == oidInt2Vector && format == pgwire.FormatText {
		return append(dst, v.text...), true
	}
	element := elementOf(oid)
	if format == pgwire.FormatText {
		return appendArray(dst, list, element), true
	}
	dimensions := uint32(1)
	if len(list) == 0 {
		dimensions = 0
	}
	dst = binary.BigEndian.AppendUint32(dst, dimensions)
	dst = binary.BigEndian.AppendUint32(dst, 1) // flag: may contain NULLs
	dst = binary.BigEndian.AppendUint32(dst, element)
	if len(list) == 0 {
		return dst, true
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(list)))
	dst = binary.BigEndian.AppendUint32(dst, 1) // lower bound
	for _, e := range list {
		at := len(dst)
		dst = append(dst, 0xff, 0xff, 0xff, 0xff)
		if e == nil {
			continue
		}
		if dst, ok = appendElement(dst, elementText(e, element), element); !ok {
			return dst, false
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	return dst, true
}

// appendElement appends an element in binary format.
func appendElement(dst []byte, text string, oid uint32) ([]byte, bool) {
	i, err := strconv.ParseInt(text, 10, 64)
	switch oid {
	case oidInt2:
		return binary.BigEndian.AppendUint16(dst, uint16(i)), err == nil
	case oidInt4, oidOID:
		return binary.BigEndian.AppendUint32(dst, uint32(i)), err == nil
	case oidInt8:
		return binary.BigEndian.AppendUint64(dst, uint64(i)), err == nil
	case oidFloat4:
		f, err := strconv.ParseFloat(text, 32)
		return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(f))), err == nil
	case oidText, oidVarchar, oidBpchar, oidName, oidJSON:
		return append(dst, text...), true
	}
	v := value{typ: sqlite.TypeText, text: []byte(text)}
	switch oid {
	case oidBool:
		b, ok := parseBool(text)
		v = value{typ: sqlite.TypeInteger}
		if b {
			v.int = 1
		}
		return mustEncode(dst, v, oid, ok)
	case oidFloat8:
		f, err := strconv.ParseFloat(text, 64)
		return mustEncode(dst, value{typ: sqlite.TypeFloat, float: f}, oid, err == nil)
	}
	return mustEncode(dst, v, oid, true)
}

func mustEncode(dst []byte, v value, oid uint32, ok bool) ([]byte, bool) {
	if !ok {
		return dst, false
	}
	c := column{Field: pgwire.Field{TypeOID: oid, Format: pgwire.FormatBinary}}
	return c.encode(dst, v)
}

// decodeArray converts an array parameter in binary format to the text that is bound.
func decodeArray(raw []byte, oid uint32) (string, error) {
	if len(raw) < 12 {
		return "", errArray
	}
	dimensions := binary.BigEndian.Uint32(raw)
	if dimensions == 0 {
		return "[]", nil
	}
	if dimensions > 1 {
		return "", errDimensions
	}
	if len(raw) < 20 {
		return "", errArray
	}
	element := elementTypes[oid]
	n := binary.BigEndian.Uint32(raw[12:])
	if n > maxElements {
		return "", errElements
	}
	list := []any{}
	for rest := raw[20:]; len(list) < int(n); {
		if len(rest) < 4 {
			return "", errArray
		}
		size := int32(binary.BigEndian.Uint32(rest))
		rest = rest[4:]
		if size < 0 {
			list = append(list, nil)
			continue
		}
		if int(size) > len(rest) {
			return "", errArray
		}
		v, err := binaryElement(rest[:size], element)
		if err != nil {
			return "", err
		}
		list = append(list, v)
		rest = rest[size:]
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// binaryElement decodes an element in binary format.
func binaryElement(raw []byte, oid uint32) (any, error) {
	if size := int(typeSize(oid)); oid != oidName && size > 0 && len(raw) != size {
		return nil, errArray
	}
	integer := func(i int64) (any, error) { return json.Number(strconv.FormatInt(i, 10)), nil }
	switch oid {
	case oidBool:
		return integer(int64(raw[0]))
	case oidInt2:
		return integer(int64(int16(binary.BigEndian.Uint16(raw))))
	case oidInt4:
		return integer(int64(int32(binary.BigEndian.Uint32(raw))))
	case oidOID:
		return integer(int64(binary.BigEndian.Uint32(raw)))
	case oidInt8:
		return integer(int64(binary.BigEndian.Uint64(raw)))
	case oidFloat4, oidFloat8:
		bits := uint64(0)
		for _, b := range raw {
			bits = bits<<8 | uint64(b)
		}
		f := math.Float64frombits(bits)
		if oid == oidFloat4 {
			f = float64(math.Float32frombits(uint32(bits)))
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, errors.New("an array keeps no NaN and no infinity")
		}
		return f, nil
	case oidNumeric:
		text, err := parseNumeric(raw)
		return text, err
	case oidUUID:
		h := hex.EncodeToString(raw)
		return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], nil
	case oidDate, oidTime, oidTimestamp, oidTimestamptz:
		return binaryTime(oid, raw)
	case oidJSONB:
		if len(raw) == 0 || raw[0] != 1 {
			return nil, errArray
		}
		return string(raw[1:]), nil
	case oidBytea:
		return "\\x" + hex.EncodeToString(raw), nil
	}
	return string(raw), nil
}

// arrayCall returns the result type of a function that takes or returns an array; unspecified for other functions.
func (ty *typer) arrayCall(name string, lo, hi int) uint32 {
	args := splitItems(ty.tokens, lo+2, min(closing(ty.tokens, lo+1), hi))
	switch {
	case name == "current_schemas":
		return arrayOf(oidName)
	case name == "regexp_split_to_array", name == "string_to_array":
		return oidTextArray
	case len(args) == 0:
	case name == "array_agg", name == "pg_list":
		return arrayOf(ty.sub(args[0].lo, args[0].hi))
	case name == "pg_array" && len(args) == 2:
		oid, _ := strconv.Atoi(ty.tokens[args[1].lo].text)
		return uint32(oid)
	case name == "array_remove":
		return ty.sub(args[0].lo, args[0].hi)
	case name == "pg_subscripts":
		return arrayOf(oidInt4)
	case name == "pg_item":
		return elementOf(ty.sub(args[0].lo, args[0].hi))
	}
	return oidUnspecified
}

// arrayFunctions are the functions that implement the syntax of arrays, see the rewriter.
func arrayFunctions() map[string]fn {
	return map[string]fn{
		"pg_list":     {[]int{-1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) { return jsonArray(args) }},
		"pg_array":    {[]int{2}, castArray},
		"pg_elements": {[]int{1}, elementsOf},
		"pg_zip":      {[]int{-1}, zipArrays},
		"pg_item":     {[]int{2}, itemOfArray},
		"pg_subscripts": {[]int{1, 2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if len(args) > 1 && args[1].Int64() != 1 { // only one dimension is supported
				return sqlite.Value{}, nil
			}
			list, err := arrayOfValue(args[0])
			for i := range list {
				list[i] = i + lowerBound(args[0].Text())
			}
			if err != nil || list == nil {
				return sqlite.Value{}, err
			}
			return marshal(list)
		}},
		"cardinality": {[]int{1}, arrayLength}, "array_length": {[]int{2}, arrayLength}, "array_upper": {[]int{2}, arrayLength},
		"array_to_string": {[]int{2, 3}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			list, err := arrayOfValue(args[0])
			if err != nil || list == nil || isNull(args[1]) {
				return sqlite.Value{}, err
			}
			var words []string
			for _, e := range list {
				switch {
				case e != nil:
					words = append(words, elementText(e, oidText))
				case len(args) == 3 && !isNull(args[2]):
					words = append(words, args[2].Text())
				}
			}
			return text(strings.Join(words, args[1].Text())), nil
		}},
	}
}

// wordFunctions are the functions on arrays of texts.
func wordFunctions() map[string]fn {
	return map[string]fn{
		"regexp_split_to_array": {[]int{2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if isNull(args[0]) || isNull(args[1]) {
				return sqlite.Value{}, nil
			}
			re, err := compilePattern(args[1].Text())
			if err != nil {
				return sqlite.Value{}, err
			}
			return marshalWords(re.Split(args[0].Text(), maxElements+1))
		}},
		"string_to_array": {[]int{2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			switch s := args[0].Text(); {
			case isNull(args[0]):
				return sqlite.Value{}, nil
			case s == "":
				return text("[]"), nil
			case isNull(args[1]):
				return marshalWords(strings.SplitN(s, "", maxElements+1))
			case args[1].Text() == "":
				return marshalWords([]string{s})
			default:
				return marshalWords(strings.SplitN(s, args[1].Text(), maxElements+1))
			}
		}},
		"array_remove": {[]int{2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			list, err := arrayOfValue(args[0])
			if err != nil || list == nil {
				return sqlite.Value{}, err
			}
			gone := jsonOf(args[1])
			return marshal(slices.DeleteFunc(list, func(e any) bool {
				return e == nil && gone == nil || e != nil && gone != nil && elementText(e, oidText) == elementText(gone, oidText)
			}))
		}},
	}
}

// arrayOfValue reads an array; nil for NULL.
func arrayOfValue(v sqlite.Value) ([]any, error) {
	if isNull(v) {
		return nil, nil
	}
	list, err := parseArray(v.Text())
	if err != nil {
		return nil, sqlError(pgwire.StateInvalidTextRepresent, "malformed array literal: %q", clip(v.Text())).because(err)
	}
	if list == nil {
		list = []any{}
	}
	return list, nil
}

// lowerBound is the subscript of the first element: 0 for a vector, 1 for an array.
func lowerBound(s string) int {
	if strings.HasPrefix(s, "{") || strings.HasPrefix(s, "[") {
		return 1
	}
	return 0
}

// marshalWords makes an array of words.
func marshalWords(words []string) (sqlite.Value, error) {
	if len(words) > maxElements {
		return sqlite.Value{}, sqlError(pgwire.StateProgramLimitExceeded, "an array of %v", errElements)
	}
	return marshal(words)
}

func marshal(v any) (sqlite.Value, error) {
	out, err := json.Marshal(v)
	return text(string(out)), err
}

// jsonOf converts a value of SQLite to an element.
func jsonOf(v sqlite.Value) any {
	switch v.Type() {
	case sqlite.TypeNull:
		return nil
	case sqlite.TypeInteger:
		return v.Int64()
	case sqlite.TypeFloat:
		return v.Float()
	case sqlite.TypeBlob:
		return "\\x" + hex.EncodeToString(v.Blob())
	}
	return v.Text()
}

func jsonArray(args []sqlite.Value) (sqlite.Value, error) {
	list := make([]any, len(args))
	for i, v := range args {
		list[i] = jsonOf(v)
	}
	return marshal(list)
}

// castArray implements CAST(x AS type[]). Elements become numbers if the element type is a number.
func castArray(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	list, err := arrayOfValue(args[0])
	if err != nil || list == nil {
		return sqlite.Value{}, err
	}
	oid := elementTypes[uint32(args[1].Int64())]
	for i, e := range list {
		word, ok := e.(string)
		switch {
		case !ok:
		case oid == oidBool:
			b, ok := parseBool(word)
			if !ok {
				return sqlite.Value{}, invalidElement(oid, word)
			}
			if list[i] = 0; b {
				list[i] = 1
			}
		case isInt(oid) || oid == oidOID:
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return sqlite.Value{}, invalidElement(oid, word)
			}
			list[i] = n
		case oid == oidFloat8 || oid == oidFloat4:
			f, err := strconv.ParseFloat(word, 64)
			if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
				return sqlite.Value{}, invalidElement(oid, word)
			}
			list[i] = f
		}
	}
	return marshal(list)
}

func invalidElement(oid uint32, word string) error {
	return sqlError(pgwire.StateInvalidTextRepresent, "invalid input syntax for type %s: %q", typeName(oid), clip(word))
}

// elementsOf returns the elements that x = ANY (array) compares x with, for json_each. It returns NULL for NULL, so
// that the comparison is NULL.
func elementsOf(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	list, err := arrayOfValue(args[0])
	if err != nil {
		return sqlite.Value{}, err
	}
	if list == nil {
		list = []any{nil}
	}
	return marshal(list)
}

// zipArrays returns the rows of unnest(a, b), for json_each: an array of arrays.
func zipArrays(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	var rows [][]any
	for i, arg := range args {
		list, err := arrayOfValue(arg)
		if err != nil {
			return sqlite.Value{}, err
		}
		for k, e := range list {
			if k == len(rows) {
				rows = append(rows, make([]any, len(args)))
			}
			rows[k][i] = e
		}
		if len(rows)*len(args) > maxElements {
			return sqlite.Value{}, sqlError(pgwire.StateProgramLimitExceeded, "unnest of %v", errElements)
		}
	}
	if rows == nil {
		return text("[]"), nil
	}
	return marshal(rows)
}

// itemOfArray implements a[i].
func itemOfArray(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	list, err := arrayOfValue(args[0])
	if err != nil || isNull(args[1]) {
		return sqlite.Value{}, err
	}
	i := args[1].Int64() - int64(lowerBound(args[0].Text()))
	if i < 0 || i >= int64(len(list)) || list[i] == nil {
		return sqlite.Value{}, nil
	}
	if n, ok := list[i].(json.Number); ok {
		if i, err := n.Int64(); err == nil {
			return sqlite.IntegerValue(i), nil
		}
		f, err := n.Float64()
		return sqlite.FloatValue(f), err
	}
	return text(elementText(list[i], oidText)), nil
}

// arrayLength implements array_length(a, 1), which is NULL for an empty array, and cardinality(a).
func arrayLength(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	list, err := arrayOfValue(args[0])
	if err != nil || list == nil || len(args) == 2 && (len(list) == 0 || args[1].Int64() != 1) {
		return sqlite.Value{}, err
	}
	return sqlite.IntegerValue(int64(len(list))), nil
}

// aggregate implements array_agg, bool_and and bool_or. Like other functions it reports errors in the connection's
// callError.
type aggregate struct {
	cs     *connState
	list   []any
	result func(list []any) (sqlite.Value, error)
}

// Step adds one value.
func (a *aggregate) Step(_ sqlite.Context, args []sqlite.Value) error {
	if len(a.list) == maxElements {
		a.list, a.cs.callError = nil, sqlError(pgwire.StateProgramLimitExceeded, "an aggregate of %v", errElements)
	}
	a.list = append(a.list, jsonOf(args[0]))
	return nil
}

// WindowInverse removes the oldest value.
func (a *aggregate) WindowInverse(sqlite.Context, []sqlite.Value) error {
	a.list = a.list[min(1, len(a.list)):]
	return nil
}

// WindowValue returns the result for the current values, NULL if there are none.
func (a *aggregate) WindowValue(sqlite.Context) (sqlite.Value, error) {
	if len(a.list) == 0 {
		return sqlite.Value{}, nil
	}
	return a.result(a.list)
}

// Finalize ends the aggregate.
func (a *aggregate) Finalize(sqlite.Context) {}

// all makes bool_and (truth is true) and bool_or (truth is false). NULLs are ignored.
func all(truth bool) func(list []any) (sqlite.Value, error) {
	return func(list []any) (sqlite.Value, error) {
		seen := false
		for _, e := range list {
			if e == nil {
				continue
			}
			if seen = true; (e != int64(0)) != truth {
				return yes(!truth), nil
			}
		}
		if !seen {
			return sqlite.Value{}, nil
		}
		return yes(truth), nil
	}
}

// registerAggregates registers the aggregates that SQLite lacks.
func registerAggregates(cs *connState) error {
	for name, result := range map[string]func([]any) (sqlite.Value, error){
		"array_agg": func(list []any) (sqlite.Value, error) { return marshal(list) },
		"bool_and":  all(true), "every": all(true), "bool_or": all(false),
	} {
		impl := &sqlite.FunctionImpl{NArgs: 1, MakeAggregate: func(sqlite.Context) (sqlite.AggregateFunction, error) {
			return &aggregate{cs: cs, result: result}, nil
		}}
		if err := cs.conn.CreateFunction(name, impl); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
