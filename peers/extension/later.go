package extension

import (
	"context"
	"errors"
	"time"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/peers"
)

// During an upgrade the new process cannot open the node's addresses, and there must not be two nodes with one identity.
// So it starts its node when the old process has closed its own. Calls of services wait for that.

// later is the start of a node that waits for the previous process.
type later struct {
	end  context.CancelFunc
	done chan struct{} // closed when the node has started, or end was called
}

// errLeft: the old process of an upgrade has closed its node.
var errLeft = errors.New("the node is another process's now, which has taken over")

// startAgain is the time between two attempts to start a node.
const startAgain = time.Second

// planLater is Plan for a part whose node waits for the previous process. next is nil if there shall be no node.
func (p *part) planLater(plan *extend.Plan, waiting *later, next *Peers) error {
	plan.Swap = append(plan.Swap, waiting.end, p.dropStarted)
	if next == nil {
		plan.Changes = append(plan.Changes, "peers removed")
		return nil
	}
	n, err := p.prepare(plan, next)
	if err != nil {
		return err
	}
	plan.Swap = append(plan.Swap, func() { p.beginLater(n) })
	return nil
}

// dropStarted closes a node that has started since a later was ended.
func (p *part) dropStarted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node := p.node; node != nil {
		p.node, p.cfg = nil, nil
		p.starting.Go(node.Close)
	}
}

// beginLater starts a node when the previous process has closed its own.
func (p *part) beginLater(n prepared) {
	ctx, end := context.WithCancel(context.Background())
	l := &later{end, make(chan struct{})}
	p.mu.Lock()
	p.later = l
	p.mu.Unlock()
	n.Logger.Info("peers: the node starts when the previous process has closed its own")
	p.starting.Go(func() {
		defer close(l.done)
		p.startLater(ctx, l, n)
	})
}

// startLater is the goroutine of a later.
func (p *part) startLater(ctx context.Context, l *later, n prepared) {
	select {
	case <-p.gateway.Vacated():
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		node, err := n.start()
		if err == nil {
			p.started(ctx, l, node, n.settings)
			break
		}
		n.Logger.Error("peers: the node cannot start, will retry", "error", err, "again_in", startAgain)
		select {
		case <-time.After(startAgain):
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.later == l {
		p.later = nil
	}
}

// started puts a node into use, unless it is not wanted any more.
func (p *part) started(ctx context.Context, l *later, node *peers.Node, settings *Peers) {
	p.mu.Lock()
	wanted := p.later == l && ctx.Err() == nil
	if wanted {
		p.node, p.cfg = node, settings
	}
	p.mu.Unlock()
	if !wanted {
		node.Close()
	}
}

// endLater ends the wait for the previous process.
func (p *part) endLater() {
	p.mu.Lock()
	l := p.later
	p.mu.Unlock()
	if l != nil {
		l.end()
	}
	p.starting.Wait()
}

// await returns the node, which a call may have to wait for until ctx ends.
func (p *part) await(ctx context.Context) (*peers.Node, error) {
	p.mu.Lock()
	node, l, left := p.node, p.later, p.left
	p.mu.Unlock()
	switch {
	case node != nil:
		return node, nil
	case left:
		return nil, errLeft
	case l == nil:
		return nil, errStarting
	}
	select {
	case <-l.done:
	case <-ctx.Done():
	}
	if node = p.now(); node == nil {
		return nil, errStarting
	}
	return node, nil
}

// callsGoOn is how long the clients of a process that another one has taken over from may begin calls of services. Then
// the gateway drains.
const callsGoOn = time.Second

var _ extend.Leaver = (*part)(nil)

// Leave implements extend.Leaver.
func (p *part) Leave(ctx context.Context) {
	p.endLater()
	node := p.now()
	if node == nil {
		return
	}
	withdrawn := make(chan error, 1)
	go func() { withdrawn <- node.Withdraw(ctx) }()
	select {
	case <-time.After(callsGoOn):
	case <-ctx.Done():
	}
	err := errors.Join(node.Drain(ctx), <-withdrawn)
	p.mu.Lock()
	p.node, p.cfg, p.left = nil, nil, true
	p.mu.Unlock()
	node.Close()
	p.gateway.Logger().Info("peers: the node is closed, so that the new process can start it", "cut_off", err)
}
