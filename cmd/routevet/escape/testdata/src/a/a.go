package a

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/headpond/headpond/route"
)

type service struct {
	last *route.Ctx
	all  map[string]*route.Ctx
	list []*route.Ctx
	jobs chan *route.Ctx
}

var global *route.Ctx

func audit(*route.Ctx)          {}
func work(context.Context)      {}
func report(d *route.Detached)  { d.Route() }
func (s *service) keep(*int)    {}
func each(f func(c *route.Ctx)) {}

type upload struct{ Files route.Files }

func (s *service) goroutines(c *route.Ctx, req upload) (int, error) {
	go audit(c)                                      // want `the route.Ctx c is used by a goroutine that may outlive its handler`
	go func() { work(c.Context()) }()                // want `the route.Ctx c is used`
	go func() { report(c.Detach()) }()               // want `the route.Ctx c is used`
	go func() { _ = req.Files }()                    // want `the route.Files Files is used`
	time.AfterFunc(time.Second, func() { audit(c) }) // want `the route.Ctx c is used`
	ctx := c.Context()
	context.AfterFunc(ctx, func() { audit(c) }) // want `the route.Ctx c is used`
	context.AfterFunc(ctx, func() { work(ctx) })
	d := c.Detach()
	go report(d)
	go func() { report(d) }()
	go work(ctx)
	go each(func(c *route.Ctx) { audit(c) })
	return 0, nil
}

func waitsForGroup(c *route.Ctx, _ struct{}) (int, error) {
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { defer wg.Done(); audit(c) }()
	wg.Wait()
	return 0, nil
}

func waitsAtEnd(c *route.Ctx, _ struct{}) (int, error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { audit(c) })
	go audit(c)
	return 0, nil
}

func waitsForChannel(c *route.Ctx, _ struct{}) (int, error) {
	done := make(chan int)
	go func() { audit(c); done <- 1 }()
	return <-done, nil
}

func waitsBefore(c *route.Ctx, _ struct{}) (int, error) {
	var wg sync.WaitGroup
	wg.Wait()
	go audit(c) // want `the route.Ctx c is used`
	return 0, nil
}

func (s *service) stores(c *route.Ctx, _ struct{}) (int, error) {
	s.last = c     // want `the route.Ctx is stored where it outlives its handler`
	s.all["x"] = c // want `the route.Ctx is stored`
	s.list[0] = c  // want `the route.Ctx is stored`
	global = c     // want `the route.Ctx is stored`
	s.jobs <- c    // want `the route.Ctx is sent to a channel`
	local := c
	var here service
	here.last = local
	_ = here
	return 0, nil
}

func captures() func(*route.Ctx) {
	var kept *route.Ctx
	_ = kept
	return func(c *route.Ctx) {
		kept = c // want `the route.Ctx is stored`
	}
}

func streams(c *route.Ctx, _ struct{}) (route.Stream, error) {
	return route.Stream{Write: func(io.Writer) error { audit(c); return nil }}, nil
}

type job struct{ c *route.Ctx }

func (j *job) run() {}

type jobs struct{ first job }

var anything any

func groups(c *route.Ctx, req upload) (int, error) {
	var wg sync.WaitGroup
	wg.Go(func() { audit(c) }) // want `the route.Ctx c is used`
	j := &job{c: c}
	go j.run()                 // want `the route.Ctx j is used`
	go func(jobs) {}(jobs{*j}) // want `the route.Ctx j is used`
	go func(upload) {}(req)    // want `the route.Files req is used`
	name := struct {
		upload
		text string
	}{req, "x"}
	go func() { _ = name.text }()
	return 0, nil
}

func (j *job) receiver() { go j.run() }

func (s *service) carries(c *route.Ctx, _ struct{}) (int, error) {
	s.list = append(s.list, c)     // want `the route.Ctx is stored`
	anything = &job{c}             // want `the route.Ctx is stored`
	anything = jobs{first: job{c}} // want `the route.Ctx is stored`
	anything = func() { audit(c) } // want `the route.Ctx is stored`
	anything = []any{c.Detach(), 1}
	queue := make(chan jobs, 1)
	queue <- jobs{job{c}} // want `the route.Ctx is sent to a channel`
	local := []*route.Ctx{}
	local = append(local, c)
	f := func() { audit(c) }
	f()
	return len(local), nil
}

// A client sends files as it likes.
func client(send func(upload)) {
	files := upload{}
	go send(files)
	anything = files.Files
}
