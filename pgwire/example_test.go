package pgwire_test

import (
	"bytes"
	"fmt"

	"github.com/headpond/headpond/pgwire"
)

func Example() {
	var wire bytes.Buffer
	w := pgwire.NewWriter(&wire)
	w.Send(&pgwire.Query{SQL: "select 1"})
	if err := w.Flush(); err != nil {
		fmt.Println(err)
	}

	r := pgwire.NewReader(&wire)
	h, err := r.Next()
	if err != nil {
		fmt.Println(err)
	}
	body, err := r.Body()
	if err != nil {
		fmt.Println(err)
	}
	var q pgwire.Query
	fmt.Println(string(h.Type), q.Decode(body), q.SQL)
	// Output: Q <nil> select 1
}

func ExampleNewScramVerifier() {
	v, err := pgwire.NewScramVerifier("pencil", []byte("sixteen bytes..."), pgwire.ScramIterations)
	if err != nil {
		fmt.Println(err)
	}
	client, server := pgwire.NewScramClient("pencil"), pgwire.NewScramServer(v, nil)
	mechanism, first, _ := client.First([]string{pgwire.MechanismSCRAM}, nil)
	first, _ = server.First(mechanism, first)
	final, _ := client.Continue(first)
	proof, err := server.Final(final)
	fmt.Println(err, client.Verify(proof))
	// Output: <nil> <nil>
}
