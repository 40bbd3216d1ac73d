package jsonfield_test

import (
	"fmt"

	"github.com/headpond/headpond/internal/jsonfield"
)

func Example() {
	plan, err := jsonfield.NewPlan([]string{"model"})
	if err != nil {
		panic(err)
	}
	var s jsonfield.Scanner
	s.Reset(plan)
	for _, piece := range []string{`{"stream": true, "mo`, `del": "gpt-`, `4", "messages": []}`} {
		fmt.Println(s.Feed([]byte(piece)) == jsonfield.Complete)
	}
	fmt.Println(s.Text(0))
	// Output:
	// false
	// false
	// true
	// gpt-4 true
}
