// Package result is what a benchmark has found: results.json, and the statistics that every report is made of.
//
//	r, err := result.Load("results.json")
//	arm := r.Case("W1c/64").Arm("gateway-uring")
//	fmt.Println(arm.Stat(result.CPU).Median)
//
// The schema is versioned: Load refuses a file of another version and says so.
package result
