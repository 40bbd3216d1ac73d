package httpproxy_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// FuzzHpack: blocks of one connection are decoded as by x/net, or refused as there.
func FuzzHpack(f *testing.F) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for range 2 {
		_ = e.WriteField(hpack.HeaderField{Name: ":path", Value: "/a/b?c=d"})
		_ = e.WriteField(hpack.HeaderField{Name: "x-one", Value: "ÿ\x00 \"\\~"})
		_ = e.WriteField(hpack.HeaderField{Name: "x-two", Value: "", Sensitive: true})
	}
	e.SetMaxDynamicTableSize(100)
	_ = e.WriteField(hpack.HeaderField{Name: "x-three", Value: strings.Repeat("y", 300)})
	f.Add(b.Bytes(), []byte{0x82, 0xbe})
	f.Add([]byte{0x3f, 0xe1, 0x1f, 0x40, 0, 0}, []byte{0x20, 0xbe})
	f.Add([]byte{0x40, 1, 'a', 0x81, 0xff}, []byte{0x7f, 0x00, 1, 'b'})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		theirs := hpack.NewDecoder(4096, nil)
		ours := httpproxy.NewHpackDecoder()
		for _, block := range [][]byte{first, second} {
			want, wantErr := theirs.DecodeFull(block)
			got, err := ours.Decode(block)
			if err != nil && wantErr == nil && overlong(block) {
				return
			}
			if wantErr != nil && strings.Contains(wantErr.Error(), "MUST occur at the beginning") {
				return // x/net takes one update of the table's size there, RFC 7541 (section 4.2) several
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%x: %v, x/net says %v", block, err, wantErr)
			}
			if err != nil {
				return
			}
			for i := range want {
				want[i].Sensitive = false
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%x:\n%q\nx/net has\n%q", block, got, want)
			}
		}
	})
}

// overlong reports whether a block may have an integer of more than five bytes, which only x/net takes.
func overlong(block []byte) bool {
	run := 0
	for _, c := range block {
		if run++; c&0x80 == 0 {
			run = 0
		}
		if run >= 4 {
			return true
		}
	}
	return false
}

// TestHpackAgainstEncoder decodes x/net's encoding of repeated fields, with tables of several sizes.
func TestHpackAgainstEncoder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string {
		s := make([]byte, random.IntN(most))
		for i := range s {
			s[i] = byte(random.IntN(256))
		}
		return string(s)
	}
	var names, values []string
	for range 40 {
		names, values = append(names, "n"+text(20)), append(values, text(200))
	}
	names = append(names, ":path", "content-type", "cookie")
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	ours := httpproxy.NewHpackDecoder()
	for round := range 2000 {
		block.Reset()
		if round%50 == 0 {
			e.SetMaxDynamicTableSize(uint32(random.IntN(4097)))
		}
		var want []hpack.HeaderField
		for range random.IntN(12) {
			f := hpack.HeaderField{Name: names[random.IntN(len(names))], Value: values[random.IntN(len(values))], Sensitive: random.IntN(8) == 0}
			if err := e.WriteField(f); err != nil {
				t.Fatal(err)
			}
			f.Sensitive = false
			want = append(want, f)
		}
		got, err := ours.Decode(block.Bytes())
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("round %d: %v\n%q\nwant\n%q", round, err, got, want)
		}
	}
}

// TestHpackKeepsItsTable: the table's entries do not change when later blocks reuse the memory of earlier ones.
func TestHpackKeepsItsTable(t *testing.T) {
	ours := httpproxy.NewHpackDecoder()
	for _, f := range []hpack.HeaderField{{Name: "x-name", Value: ""}, {Name: "x-name", Value: "value"}, {Name: "accept", Value: "secret"}} {
		var block bytes.Buffer
		if err := hpack.NewEncoder(&block).WriteField(f); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Decode(block.Bytes()); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Decode(append([]byte{0, 30}, append(bytes.Repeat([]byte("z"), 30), 0)...)); err != nil {
			t.Fatal(err)
		}
		got, err := ours.Decode([]byte{0x80 | 62})
		if err != nil || len(got) != 1 || got[0] != f {
			t.Errorf("%q, %v; want %q", got, err, f)
		}
	}
}
