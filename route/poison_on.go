//go:build race || debugpool

package route

// poisoning is whether exchanges are used once and then made useless: with the race detector, and with
// the build tag debugpool.
const poisoning = true
