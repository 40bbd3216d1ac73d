package httpproxy

import (
	"errors"
	"math/bits"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpwire"
)

// hpackDecoder decodes the field blocks of one connection (RFC 7541). x/net's decoder allocates two
// strings for each field that is not in a table. Here a field of a table costs no copy, and is checked
// only once; the text of other fields goes to memory that is reused.
type hpackDecoder struct {
	entries []hpackField // the dynamic table, oldest first; those before first are evicted
	first   int
	size    int // of the table, computed as in section 4.1
	most    int // the limit of size; at most tableSize

	emit  func(*hpackField) // takes a field; it may keep only the field's strings
	field hpackField        // the field that is being decoded
}

// hpackField is a decoded field with the results of its checks.
type hpackField struct {
	name, value string
	known       httpwire.Known
	pseudo      bool // the name begins with a colon
	badName     bool // the name is invalid for a regular field
	badValue    bool
}

// setName sets and checks the name.
func (f *hpackField) setName(name string) {
	*f = hpackField{name: name}
	if f.pseudo = name != "" && name[0] == ':'; f.pseudo {
		return
	}
	if f.badName = !validH2Name(name); !f.badName {
		f.known = httpwire.Classify(name)
	}
}

// setValue sets and checks the value.
func (f *hpackField) setValue(value string) { f.value, f.badValue = value, !validH2Value(value) }

// weight returns the size of a field (section 4.1).
func (f *hpackField) weight() int { return len(f.name) + len(f.value) + fieldOverhead }

// staticFields is the static table (appendix A), taken from x/net's decoder. Index 0 is none.
var staticFields = func() (all [62]hpackField) {
	for i := 1; i < len(all); i++ {
		got, err := hpack.NewDecoder(0, nil).DecodeFull([]byte{indexed | byte(i)})
		if err != nil {
			panic(err)
		}
		all[i].setName(got[0].Name)
		all[i].setValue(got[0].Value)
	}
	return all
}()

var errHpack = errors.New("a block of fields that cannot be decoded")

// decode decodes a whole block. It appends the strings of fields that are in no table to *text. After
// an error the connection cannot be used.
func (d *hpackDecoder) decode(b []byte, text *[]byte) error {
	begun := false // there was a field, so the size of the table must not change any more (section 4.2)
	for len(b) > 0 {
		var n int
		var err error
		f := &d.field
		switch first := b[0]; {
		case first&0x80 != 0:
			var i int
			if i, n, err = hpackInteger(b, 7); err == nil {
				f = d.at(i)
			}
		case first&0xc0 == 0x40:
			n, err = d.literal(b, 6, text)
		case first&0xe0 == 0x20:
			if begun && len(d.entries) > d.first {
				return errHpack
			}
			if n, err = d.resize(b); err != nil {
				return err
			}
			b = b[n:]
			continue
		default: // a field that is not added to the table
			n, err = d.literal(b, 4, text)
		}
		if err != nil || f == nil {
			return errHpack
		}
		d.emit(f)
		b, begun = b[n:], true
	}
	return nil
}

// literal decodes a field with its own value, and perhaps its own name, into d.field; n is how many
// bytes of b it takes. prefix is the number of bits of the first byte that hold the name's index.
// Fields with 6 bits are added to the table.
func (d *hpackDecoder) literal(b []byte, prefix uint, text *[]byte) (n int, err error) {
	f := &d.field
	i, n, err := hpackInteger(b, prefix)
	if err != nil {
		return 0, err
	}
	start := len(*text)
	if i > 0 {
		entry := d.at(i)
		if entry == nil {
			return 0, errHpack
		}
		f.name, f.known, f.pseudo, f.badName = entry.name, entry.known, entry.pseudo, entry.badName
	} else {
		k, err := hpackString(b[n:], text)
		if err != nil {
			return 0, err
		}
		n += k
		f.setName(view((*text)[start:]))
	}
	middle := len(*text)
	k, err := hpackString(b[n:], text)
	if err != nil {
		return 0, err
	}
	f.setValue(view((*text)[middle:]))
	if prefix != 6 {
		return n + k, nil
	}
	own := string((*text)[start:]) // for the table, which outlives *text
	*text = (*text)[:start]
	if i == 0 {
		f.name = own[:middle-start]
	}
	f.value = own[middle-start:]
	d.add(f)
	return n + k, nil
}

// add adds a field to the table, which keeps its strings (section 4.4).
func (d *hpackDecoder) add(f *hpackField) {
	w := f.weight()
	d.evict(d.most - w)
	if w > d.most {
		return
	}
	if len(d.entries) == cap(d.entries) && d.first >= len(d.entries)/2 {
		n := copy(d.entries, d.entries[d.first:])
		clear(d.entries[n:])
		d.entries, d.first = d.entries[:n], 0
	}
	d.entries = append(d.entries, *f)
	d.size += w
}

// evict removes the oldest fields until the table is no larger than size.
func (d *hpackDecoder) evict(size int) {
	for d.size > size && d.first < len(d.entries) {
		d.size -= d.entries[d.first].weight()
		d.entries[d.first] = hpackField{}
		d.first++
	}
}

// resize handles an update of the table's size (section 6.3).
func (d *hpackDecoder) resize(b []byte) (n int, err error) {
	size, n, err := hpackInteger(b, 5)
	if err != nil || size > tableSize {
		return 0, errHpack
	}
	d.most = size
	d.evict(size)
	return n, nil
}

// at returns the field with an index; nil = there is none.
func (d *hpackDecoder) at(i int) *hpackField {
	if i < len(staticFields) {
		if i == 0 {
			return nil
		}
		return &staticFields[i]
	}
	if i = len(d.entries) - 1 - (i - len(staticFields)); i < d.first {
		return nil
	}
	return &d.entries[i]
}

// hpackString appends a decoded string to *text (section 5.2); n is how many bytes of b it takes.
func hpackString(b []byte, text *[]byte) (n int, err error) {
	if len(b) == 0 {
		return 0, errHpack
	}
	size, n, err := hpackInteger(b, 7)
	if err != nil || size > len(b)-n {
		return 0, errHpack
	}
	raw := b[n : n+size]
	if b[0]&0x80 == 0 {
		*text = append(*text, raw...)
	} else if *text, err = appendHuffman(*text, raw); err != nil {
		return 0, err
	}
	return n + size, nil
}

// maxHpackInteger is larger than any index or length that fits in a block.
const maxHpackInteger = 1 << 28

// hpackInteger decodes an integer that begins in the last bits of the first byte of b, which must not
// be empty (section 5.1).
func hpackInteger(b []byte, prefix uint) (i, n int, err error) {
	most := 1<<prefix - 1
	if i = int(b[0]) & most; i < most {
		return i, 1, nil
	}
	for n, shift := 1, 0; n < len(b) && shift < 28; n, shift = n+1, shift+7 {
		i += int(b[n]&0x7f) << shift
		if b[n]&0x80 == 0 {
			if i > maxHpackInteger {
				return 0, 0, errHpack
			}
			return i, n + 1, nil
		}
	}
	return 0, 0, errHpack
}

// huffman is the code of appendix B, computed by x/net's encoder. Codes are ordered by length, and
// codes of one length by value. A code of at most huffmanFast bits is looked up in a table; longer
// ones are found by the limits of each length.
var huffman = newHuffmanCode()

const (
	huffmanFast    = 9
	huffmanLongest = 30
)

type huffmanCode struct {
	fast    [1 << huffmanFast]struct{ symbol, length byte }
	limit   [huffmanLongest + 1]uint32 // the first code beyond those of a length, left-aligned
	base    [huffmanLongest + 1]uint32 // the first code of a length, left-aligned
	offset  [huffmanLongest + 1]uint8  // its symbol in symbols
	symbols []byte                     // by code
}

func newHuffmanCode() (c huffmanCode) {
	var codes [256]uint32 // left-aligned
	var byLength [huffmanLongest + 1][]byte
	for s := range codes {
		eight := string([]byte{byte(s), byte(s), byte(s), byte(s), byte(s), byte(s), byte(s), byte(s)})
		length := int(hpack.HuffmanEncodeLength(eight)) // in bytes for eight symbols, so in bits for one
		for i, b := range hpack.AppendHuffmanString(nil, string([]byte{byte(s)})) {
			codes[s] |= uint32(b) << (24 - 8*i)
		}
		codes[s] &= ^uint32(0) << (32 - length) // without padding
		byLength[length] = append(byLength[length], byte(s))
	}
	for length, symbols := range byLength {
		if len(symbols) == 0 {
			continue
		}
		step := uint32(1) << (32 - length)
		c.base[length], c.offset[length] = codes[symbols[0]], uint8(len(c.symbols))
		c.limit[length] = codes[symbols[len(symbols)-1]] + step
		c.symbols = append(c.symbols, symbols...)
		if length > huffmanFast {
			continue
		}
		for _, s := range symbols {
			for i := codes[s] >> (32 - huffmanFast); i < (codes[s]+step)>>(32-huffmanFast); i++ {
				c.fast[i].symbol, c.fast[i].length = s, byte(length)
			}
		}
	}
	return c
}

// find returns the symbol that the bits of v begin with, and its length; 0 = there is none.
func (c *huffmanCode) find(v uint32) (symbol byte, length int) {
	if f := &c.fast[v>>(32-huffmanFast)]; f.length > 0 {
		return f.symbol, int(f.length)
	}
	for length = huffmanFast + 1; length <= huffmanLongest; length++ {
		if v < c.limit[length] {
			return c.symbols[int(c.offset[length])+int((v-c.base[length])>>(32-length))], length
		}
	}
	return 0, 0
}

// appendHuffman appends the decoded form of raw (section 5.2).
func appendHuffman(dst, raw []byte) ([]byte, error) {
	var window uint64 // the next bits, left-aligned
	have := 0
	for {
		for have <= 56 && len(raw) > 0 {
			window |= uint64(raw[0]) << (56 - have)
			raw = raw[1:]
			have += 8
		}
		symbol, length := huffman.find(uint32(window >> 32))
		if length == 0 || length > have {
			break
		}
		dst = append(dst, symbol)
		window <<= length
		have -= length
	}
	// The remainder must be a prefix of the end-of-string code, which has ones only, and less than a byte.
	if have >= 8 || bits.LeadingZeros64(^window) < have {
		return dst, errHpack
	}
	return dst, nil
}
