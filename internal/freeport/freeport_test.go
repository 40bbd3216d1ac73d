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

func TestGetGivesNoneTwice(t *testing.T) {
	given := map[int]bool{}
	for range 200 {
		port, err := freeport.Get()
		if err != nil {
			t.Fatal(err)
		}
		if given[port] {
			t.Fatalf("port %d again", port)
		}
		given[port] = true
	}
}
