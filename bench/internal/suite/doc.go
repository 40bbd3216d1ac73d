// Package suite defines the workloads of WORKLOADS.md: the arms, their backends, the measurement, and the published
// claims.
package suite
