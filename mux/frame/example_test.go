package frame_test

import (
	"fmt"

	"github.com/headpond/headpond/mux/frame"
)

func Example() {
	d := frame.Data{Channel: 1, Payload: []byte("hello")}
	wire := d.Append(nil)
	fmt.Printf("% x\n", wire)

	h, err := frame.ParseHeader(wire)
	if err != nil {
		panic(err)
	}
	if err := d.Decode(h, wire[frame.HeaderSize:][:h.Length]); err != nil {
		panic(err)
	}
	fmt.Printf("%v on channel %d: %s\n", h.Type, d.Channel, d.Payload)
	// Output:
	// 12 00 00 00 00 00 00 05 00 00 00 01 00 00 00 00 68 65 6c 6c 6f
	// DATA on channel 1: hello
}
