// Package route measures workload W5 of WORKLOADS.md: what a handler costs that binds, validates and answers.
//
//	go test -run '^$' -bench Route -count 10 -cpu 1,2,4 ./route
//	GOGC=off go test …
//	route/compare.sh allocated pooled    # by benchstat, the arms in turn
//
// Every arm is served requests made once and answers into one recorder that is reset, both the same for all:
// "harness" is a handler that does nothing, which is what this costs (to be subtracted). "gin" binds with ShouldBind and answers with
// JSON; "huma" and "fuego" are typed handlers of these frameworks with validation on; "allocated" is package route with
// memory of its own for each request, "pooled" is route as it is, "ginroute" the same below gin's router. All bind and
// check {name, email, age, country} and answer with a user; "get" answers without reading anything.
//
// The differential tests here compare route with gin's binding and with go-playground/validator.
package route
