package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// Source is a gateway.
type Source interface {
	// Get returns the body of the admin page's answer to a path and query; the answer's status was 200.
	Get(ctx context.Context, path string) ([]byte, error)
	// Kill ends the session with an ID. It is an error if there is none.
	Kill(ctx context.Context, id string) error
}

// Limits and default of Options.Interval. A gateway with very many sessions takes some milliseconds for an answer.
const (
	MinInterval     = 200 * time.Millisecond
	DefaultInterval = 2 * time.Second
	MaxInterval     = time.Hour
)

// Options are what Run needs. Source and Output are required.
type Options struct {
	Source Source
	Input  *os.File // nil: there are no keys
	// Output gets the screen if it and Input are a terminal that can move its cursor, and text otherwise.
	Output io.Writer
	// Getenv returns the environment's TERM, NO_COLOR and COLUMNS; nil = os.Getenv.
	Getenv   func(string) string
	Interval time.Duration // 0 = DefaultInterval
	// Frames is how many frames are written, as text; 0: a screen until the operator quits, or one frame where there can
	// be none.
	Frames int
	View   View
	Order  string // of the View; empty = the default
	Filter string
}

// Check returns an error if the View has no such Order.
func (o *Options) Check() error {
	if o.Order == "" {
		return nil
	}
	return NewModel(o.View, o.Interval).SetOrder(o.Order)
}

// Run shows a gateway until ctx ends, the operator quits, or the frames are written. It returns an error if the gateway
// does not answer at the beginning, and errors of the output. The terminal is always left as it was.
func Run(ctx context.Context, o Options) error {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	m := NewModel(o.View, o.Interval)
	m.SetFilter(o.Filter)
	if o.Order != "" {
		if err := m.SetOrder(o.Order); err != nil {
			return err
		}
	}
	first := Ask(ctx, o.Source, m.Query())
	if first.Err != nil {
		return first.Err
	}
	m.Update(first)
	out, _ := o.Output.(*os.File)
	isTerminal := out != nil && o.Input != nil && IsTerminal(out) && IsTerminal(o.Input)
	if o.Frames == 0 && isTerminal && o.Getenv("TERM") != "dumb" && canDraw {
		s, err := newScreen(m, o, out)
		if err != nil {
			return err
		}
		return s.run(ctx)
	}
	if o.Frames == 0 && !isTerminal {
		o.Frames = 1
	}
	m.Height, m.Width = 0, textWidth(o.Getenv)
	return writeFrames(ctx, m, o)
}

// defaultTextWidth is the width of text that goes to no terminal.
const defaultTextWidth = 110

func textWidth(getenv func(string) string) int {
	if n, err := strconv.Atoi(getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return defaultTextWidth
}

// writeFrames writes frames as text; Frames 0 = until ctx ends. Rates need two answers.
func writeFrames(ctx context.Context, m *Model, o Options) error {
	for i := 0; i < o.Frames || o.Frames == 0; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.Interval):
		}
		p := Ask(ctx, o.Source, m.Query())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}
		m.Update(p)
		text := Text(m.Frame(time.Now()))
		if i > 0 {
			text = "\n" + text
		}
		if _, err := io.WriteString(o.Output, text); err != nil {
			return err
		}
	}
	return nil
}

// askTimeout bounds a request: the screen says since when there has been no answer.
const askTimeout = 10 * time.Second

// Ask asks for what a screen shows; query is that of the Model.
func Ask(ctx context.Context, source Source, query string) Picture {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	p := Picture{Query: query}
	body, err := source.Get(ctx, "/api/v1/status?histograms=true")
	if err == nil {
		p.status, err = parseStatus(body)
	}
	if err == nil {
		body, err = source.Get(ctx, "/api/v1/sessions?"+query)
	}
	if err == nil {
		err = json.Unmarshal(body, &p.sessions)
	}
	if err == nil && p.sessions.Sessions == nil {
		p.sessions.Sessions = []admin.Session{}
	}
	p.At, p.Err = time.Now(), err
	return p
}

// crash is a panic of a goroutine, which must not end the process before the terminal is as it was.
type crash struct {
	value any
	stack []byte
}

func (c crash) String() string { return fmt.Sprintf("%v\n\n%s", c.value, c.stack) }
