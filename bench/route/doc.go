// Package route measures workload W5 of WORKLOADS.md: the cost of a handler that binds, validates and answers.
//
//	go test -run '^$' -bench Route -count 10 -cpu 1,2,4 ./route
//	GOGC=off go test …
//	route/compare.sh allocated pooled    # with benchstat, arms measured alternately
//
// All arms use the same requests, made once, and the same recorder, which is reset. "harness" is a handler that does
// nothing; its cost must be subtracted. "gin" binds with ShouldBind and answers with JSON; "huma" and "fuego" are typed
// handlers of these frameworks with validation on; "allocated" is package route with memory of its own for each
// request, "pooled" is route, "ginroute" is route below gin's router. All bind and check {name, email, age, country}
// and answer with a user; "get" answers without reading anything.
//
// The differential tests here compare route with gin's binding and with go-playground/validator.
package route
