package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/headpond/headpond/internal/top"
)

// topHelp is what `headpond help top` says.
const topHelp = `Shows what the gateway whose admin page is at the address does now: its pools, sessions, listeners, endpoints and
problems, until q. The key ? lists the keys. Without a terminal, and with -once or -n, it prints text.
`

// runTop is `headpond top`.
func runTop(e env, args []string) int {
	fs := flags("top", "", topHelp)
	address := fs.String("admin", DefaultAdmin, "`address` of the admin page: host:port or unix:/path")
	o := top.Options{Input: os.Stdin, Output: fileOf(e.stdout)}
	once := fs.Bool("once", false, "print one frame as text: -n 1")
	fs.Func("n", "print this `number` of frames as text", func(text string) (err error) {
		if o.Frames, err = strconv.Atoi(text); err != nil || o.Frames < 1 {
			return errors.New("want a number from 1")
		}
		return nil
	})
	fs.Func("i", "ask the gateway once in this `duration`; 2s by default", func(text string) (err error) {
		if o.Interval, err = time.ParseDuration(text); err != nil || o.Interval < top.MinInterval || o.Interval > top.MaxInterval {
			return fmt.Errorf("want a duration from %v to %v, such as 1s", top.MinInterval, top.MaxInterval)
		}
		return nil
	})
	fs.Func("view", "begin with this `view`: pools (the default), sessions, listeners, endpoints or problems", func(text string) (err error) {
		o.View, err = top.ParseView(text)
		return err
	})
	fs.StringVar(&o.Order, "sort", "", "`order` of the rows, such as wait, age, bytes or state of sessions; -wait: reversed")
	fs.StringVar(&o.Filter, "filter", "", "only rows with this `text`")
	if _, code, ok := parse(e, fs, args, 0, "top takes no arguments"); !ok {
		return code
	}
	if *once {
		o.Frames = 1
	}
	if err := o.Check(); err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond top:", err)
		return exitUsage
	}
	o.Source = gatewayAt(*address)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := top.Run(ctx, o); err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return exitProblem
	}
	return exitOK
}

// fileOf returns the file that a writer of an env writes to, or the writer if that is no file.
func fileOf(w io.Writer) io.Writer {
	if o, ok := w.(*output); ok {
		if f, ok := o.Writer.(*os.File); ok {
			return f
		}
	}
	return w
}

// gatewayAt is the gateway whose admin page is at an address. It implements top.Source.
type gatewayAt string

// Get implements top.Source.
func (g gatewayAt) Get(ctx context.Context, path string) ([]byte, error) {
	code, body, err := askWith(ctx, string(g), http.MethodGet, path, http.NoBody)
	if err == nil && code != http.StatusOK {
		err = unexpected(string(g), code, body)
	}
	return body, err
}

// Kill implements top.Source.
func (g gatewayAt) Kill(ctx context.Context, id string) error { return kill(ctx, string(g), id) }

// kill ends a session.
func kill(ctx context.Context, address, id string) error {
	return askChange(ctx, address, http.MethodDelete, "/api/v1/sessions/"+url.PathEscape(id), http.NoBody, "ends no sessions"+notLocal)
}
