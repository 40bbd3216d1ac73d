// Package jsonfield finds a few fields of a JSON object in a stream of bytes, without keeping the
// object:
//
//	plan, err := jsonfield.NewPlan([]string{"model", "metadata.tenant"})
//	…
//	var s jsonfield.Scanner
//	s.Reset(plan)
//	for s.Feed(piece) == jsonfield.More {
//		…
//	}
//	model, ok := s.Text(0)
//
// It is as strict as encoding/json about syntax. An object that has a wanted field twice, also in
// letters of another case, is Ambiguous: readers differ in which of the two counts.
package jsonfield
