package extend_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/listener"
)

// A listener of protocol quote answers every byte with a text.

func init() {
	extend.RegisterProtocol(extend.Protocol{
		Config:  config.ListenerProtocol{Name: "quote", Section: &QuoteListener{}, NoUpstream: "a quote is all that its clients get", Check: checkQuote},
		Prepare: prepareQuote,
		Show:    showQuotes,
	})
}

// QuoteListener is the section of a quote listener.
type QuoteListener struct {
	Text  string `conf:"text" required:"true"`
	Times int    `conf:"times" default:"1" min:"1" max:"10"`
}

func checkQuote(c *config.Checker, l *config.Listener) {
	if q := config.SectionOf[QuoteListener](l); strings.Contains(q.Text, "\n") {
		c.Report(c.Mark(&q.Text), "text: want a single line")
	}
}

func prepareQuote(l extend.Listener) (extend.Server, error) {
	q := config.SectionOf[QuoteListener](l.Listener)
	return extend.Serve(quoteConfig{l.Common, strings.Repeat(q.Text, q.Times)}, newQuotes)
}

type quoteConfig struct {
	listener.Config
	answer string
}

type quotes struct {
	*listener.Server
	answer atomic.Pointer[string]
	asked  atomic.Uint64
}

func newQuotes(cfg quoteConfig) (*quotes, error) {
	q := &quotes{}
	q.answer.Store(&cfg.answer)
	srv, err := listener.New(cfg.Config, listener.HandlerFunc(q.serve))
	q.Server = srv
	return q, err
}

func (q *quotes) serve(_ context.Context, c *listener.Conn) {
	defer func() { _ = c.Close() }()
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return
		}
		q.asked.Add(1)
		if _, err := io.WriteString(c, *q.answer.Load()); err != nil {
			return
		}
	}
}

// Update changes the text, also for the sessions that run.
func (q *quotes) Update(cfg quoteConfig) error {
	q.answer.Store(&cfg.answer)
	return q.Server.Update(cfg.Config)
}

// QuoteStatus is an element of "quotes" in /api/v1/status.
type QuoteStatus struct {
	Listener string `json:"listener"`
	Text     string `json:"text"`
	Asked    uint64 `json:"asked"`
}

var quoteReport = admin.Report[QuoteStatus]{
	Key: "quotes", Title: "Quotes",
	Columns: []admin.Column[QuoteStatus]{
		admin.Text("quotes", func(s QuoteStatus) string { return s.Listener }),
		admin.Count("asked", func(s QuoteStatus) float64 { return float64(s.Asked) }),
		admin.Text("text", func(s QuoteStatus) string { return s.Text }),
	},
	Labels:  []string{"listener"},
	Values:  func(s QuoteStatus) []string { return []string{s.Listener} },
	Metrics: []admin.RowMetric[QuoteStatus]{admin.Counter("quote_asked_total", "Quotes given.", func(s QuoteStatus) float64 { return float64(s.Asked) })},
	Trouble: func(s QuoteStatus, _ time.Time) string {
		if strings.TrimSpace(s.Text) != "" {
			return ""
		}
		return "quotes " + s.Listener + " have nothing to say"
	},
}

func showQuotes(proxies []extend.Proxy) []admin.Addition {
	var rows []QuoteStatus
	for _, p := range proxies {
		q := p.(*quotes) //nolint:forcetypeassert // made by newQuotes
		rows = append(rows, QuoteStatus{Listener: q.Stats().Name, Text: *q.answer.Load(), Asked: q.asked.Load()})
	}
	return []admin.Addition{quoteReport.Of(rows)}
}

func Example() {
	cfg, problems := config.Parse("quote.yaml", []byte(`
listeners:
  - {name: q, protocol: quote, listen: "127.0.0.1:0", quote: {text: "So it goes. ", times: 2}}
`))
	fmt.Print(problems)
	ctx, stop := context.WithCancel(context.Background())
	var gw *gateway.Gateway
	ask := func() {
		c, err := net.Dial("tcp", gw.Addr("q"))
		if err != nil {
			fmt.Println(err)
			return
		}
		_, _ = c.Write([]byte("?"))
		answer := make([]byte, len("So it goes. So it goes."))
		_, err = io.ReadFull(c, answer)
		fmt.Println(string(answer), err, c.Close())
		stop()
	}
	gw, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler), Started: func() { go ask() }})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(gw.Run(ctx))
	// Output:
	// So it goes. So it goes. <nil> <nil>
	// <nil>
}
