// Package suite is the workloads of WORKLOADS.md: which arms, behind what, measured how, beside which published claim.
package suite
