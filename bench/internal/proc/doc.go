// Package proc starts the processes under test and reads what they cost: processor time with that of their children, and memory.
//
//	g := proc.NewGroup()
//	defer g.Stop()
//	p, err := g.Start(proc.Spec{Name: "haproxy", Path: "/usr/sbin/haproxy", Args: []string{"-db", "-f", "haproxy.cfg"}})
//	before, err := p.CPU()
//
// Processes end with their group, and, as the kernel sees to it, with this process. It works on Linux only.
package proc
