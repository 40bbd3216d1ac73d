//go:build !race

package mux_test // the core has no concurrency, and its models take several times as long with the race detector

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/headpond/headpond/mux"
)

// TestModel plays random sessions of two cores.
func TestModel(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &model{t: t, r: rand.New(rand.NewPCG(seed, 7))}
			cfg := mux.Config{
				ChannelWindow: 4096 << m.r.IntN(6), MaxMessage: 128 << 10,
				MaxFrame: 1024 << m.r.IntN(6), MaxChannels: 20, AcceptBacklog: 30,
			}
			cfg.SessionWindow = cfg.ChannelWindow << m.r.IntN(6) // often without room for messages that are not taken
			cfg.MaxChannelWindow = max(cfg.ChannelWindow, 64<<10)
			m.cores[0], m.cores[1] = mux.NewCorePair(cfg, seed%2 == 0)
			m.run(3000, func() {})
			m.settle()
		})
	}
}

// TestModelResume is TestModel on connections that are cut all the time.
func TestModelResume(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &model{t: t, r: rand.New(rand.NewPCG(seed, 9))}
			const ring = 64 << 10
			cfg := mux.Config{
				ChannelWindow: 4096 << m.r.IntN(6), SessionWindow: 4 << 20, MaxMessage: 128 << 10,
				MaxFrame: 1024 << m.r.IntN(6), MaxChannels: 20, AcceptBacklog: 30, Resume: &mux.Resume{Buffer: ring},
			}
			m.cores[0], m.cores[1] = mux.NewCorePair(cfg, seed%2 == 0)
			m.run(2000, func() {
				if m.r.IntN(12) == 0 {
					m.cut()
				}
				if kept := max(m.cores[0].Kept(), m.cores[1].Kept()); kept > ring+(64<<10)+(256<<10)+4096 {
					t.Fatalf("%d bytes kept, the bound is %d and a batch", kept, ring)
				}
			})
			m.settle()
			if m.cuts < 50 {
				t.Errorf("only %d cuts", m.cuts)
			}
		})
	}
}
