//go:build !race && !debugpool

package route

// poisoning is whether exchanges are used once and then made useless.
const poisoning = false
