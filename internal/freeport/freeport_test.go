package freeport_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/headpond/headpond/internal/freeport"
)

func Example() {
	port, err := freeport.Get()
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	fmt.Println(err)
	_ = l.Close()
	// Output: <nil>
}

func TestGetReturnsDistinctPorts(t *testing.T) {
	given := map[int]bool{}
	for range 200 {
		port, err := freeport.Get(1, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []int{port, port + 1, port + 7} {
			if given[p] {
				t.Fatalf("port %d again", p)
			}
			given[p] = true
		}
	}
}
