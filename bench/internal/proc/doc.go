// Package proc starts the processes under test and reads their cost: memory, and processor time including that of their
// children.
//
//	g := proc.NewGroup()
//	defer g.Stop()
//	p, err := g.Start(proc.Spec{Name: "haproxy", Path: "/usr/sbin/haproxy", Args: []string{"-db", "-f", "haproxy.cfg"}})
//	before, err := p.CPU()
//
// Processes end with their group. The kernel also ends them when this process dies. The package is for Linux only.
package proc
