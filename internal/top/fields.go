package top

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/headpond/headpond/gateway/admin"
)

// fieldsOf returns the members of a row of the API by name, without those that are empty.
func fieldsOf(v any) []field {
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var members map[string]any
	_ = json.Unmarshal(text, &members) // no error: it has been encoded above
	return flatten("", members)
}

// upstreamFields are the members of an upstream. The endpoints and pairs have views of their own.
func upstreamFields(u *admin.UpstreamStatus) []field {
	without := *u
	without.Endpoints, without.Pairs = nil, nil
	return fieldsOf(without)
}

// never is the zero time.
const never = "0001-01-01T00:00:00Z"

// histograms are members that are no use to a reader.
var histograms = []string{"histogram", "acquire_histogram"}

// flatten returns members sorted by name, those of objects as "object.member".
func flatten(prefix string, members map[string]any) (list []field) {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if slices.Contains(histograms, name) {
			continue
		}
		switch v := members[name].(type) {
		case nil:
		case map[string]any:
			list = append(list, flatten(prefix+name+".", v)...)
		case []any:
			if len(v) > 0 {
				list = append(list, field{prefix + name, fmt.Sprint(v)})
			}
		case float64:
			if v != 0 {
				list = append(list, field{prefix + name, strconv.FormatFloat(v, 'f', -1, 64)})
			}
		default:
			if text := scalar(v); text != "" && text != never {
				list = append(list, field{prefix + name, text})
			}
		}
	}
	return list
}
