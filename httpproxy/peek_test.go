package httpproxy_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// told is what a backend of startModels answers: its name, and the body it got.
func toldBy(name, body string) string { return name + " " + body }

// startModels starts a proxy with a backend for each of some models, and one for the rest.
func startModels(t testing.TB, change func(*httpproxy.Config)) running {
	t.Helper()
	backend := func(name string) *httpproxy.Upstream {
		return newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Expect") != "" {
				t.Errorf("%s is asked for leave", name)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			_, _ = io.WriteString(w, toldBy(name, string(body)))
		}))
	}
	type match = []httpproxy.FieldMatch
	cfg := httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: backend("rest")},
		{Upstream: backend("gpt"), Body: match{{Name: "model", Value: "gpt-4"}}},
		{Upstream: backend("gpt for t"), Body: match{{Name: "model", Value: "gpt-4"}, {Name: "metadata.tenant", Value: "t"}}},
		{Upstream: backend("any tier"), Body: match{{Name: "tier", Value: "*"}}},
		{Upstream: backend("n"), Body: match{{Name: "n", Value: "1"}}},
	}}
	if change != nil {
		change(&cfg)
	}
	return startProxy(t, cfg)
}

// TestRouteByBody: requests go by fields of their bodies, which arrive as they were sent, whatever frames them.
func TestRouteByBody(t *testing.T) {
	p := startModels(t, nil)
	pad := func(n int) string { return `"pad":"` + strings.Repeat("x", n) + `"` }
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(zip, `{"model":"gpt-4"}`)
	_ = zip.Close()
	for name, tc := range map[string]struct{ body, fields, want string }{
		"at the top":             {`{"model":"gpt-4"}`, "", "gpt"},
		"with a space":           {" \n{ \"model\" :\t\"gpt-4\" } ", "", "gpt"},
		"escaped":                {`{"m\u006fdel":"gpt\u002d4"}`, "", "gpt"},
		"another model":          {`{"model":"gpt-4o"}`, "", "rest"},
		"after messages":         {`{` + pad(20_000) + `,"model":"gpt-4"}`, "", "gpt"},
		"before messages":        {`{"model":"gpt-4",` + pad(1_000_000) + `}`, "", "gpt"},
		"just within":            {`{` + pad(60_000) + `,"model":"gpt-4"}`, "", "gpt"},
		"beyond":                 {`{` + pad(66_000) + `,"model":"gpt-4"}`, "", "rest"},
		"two fields":             {`{"metadata":{"tenant":"t"},"model":"gpt-4"}`, "", "gpt for t"},
		"any":                    {`{"tier":null}`, "", "any tier"},
		"any object":             {`{"tier":{}}`, "", "any tier"},
		"number":                 {`{"n":1}`, "", "n"},
		"another number":         {`{"n":1.0}`, "", "rest"},
		"string for a number":    {`{"n":"1"}`, "", "n"},
		"inner":                  {`{"x":{"model":"gpt-4"}}`, "", "rest"},
		"an array":               {`[{"model":"gpt-4"}]`, "", "rest"},
		"not JSON":               {`model=gpt-4`, "", "rest"},
		"broken off":             {`{"model":"gpt-4",`, "", "rest"},
		"wrong after it":         {`{"model":"gpt-4",}`, "", "rest"},
		"empty":                  {``, "", "rest"},
		"JSON":                   {`{"model":"gpt-4"}`, "Content-Type: Application/JSON; charset=utf-8", "gpt"},
		"a kind of JSON":         {`{"model":"gpt-4"}`, "Content-Type: application/merge-patch+json", "gpt"},
		"what curl says":         {`{"model":"gpt-4"}`, "Content-Type: application/x-www-form-urlencoded", "gpt"},
		"text":                   {`{"model":"gpt-4"}`, "Content-Type: text/plain", "rest"},
		"a part of many":         {`{"model":"gpt-4"}`, "Content-Type: multipart/form-data; boundary=x", "rest"},
		"compressed":             {zipped.String(), "Content-Encoding: gzip", "rest"},
		"twice":                  {`{"model":"gpt-4","model":"gpt-4"}`, "", "400"},
		"twice, escaped":         {`{"model":"gpt-4","mode\u006c":"x"}`, "", "400"},
		"twice, in another case": {`{"model":"gpt-4","MODEL":"x"}`, "", "400"},
		"twice, no text":         {`{"tier":[],"x":1,"tier":{}}`, "", "400"},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, framing := range []string{"length", "chunks"} {
				body := io.Reader(strings.NewReader(tc.body))
				if framing == "chunks" {
					body = struct{ io.Reader }{body}
				}
				req, err := http.NewRequest("POST", p.url, body)
				if err != nil {
					t.Fatal(err)
				}
				if name, value, ok := strings.Cut(tc.fields, ": "); ok {
					req.Header.Set(name, value)
				}
				resp, got := doWith(t, clientFor(t, proto), req)
				want := toldBy(tc.want, tc.body)
				if tc.want == "400" && resp.StatusCode == 400 && strings.Contains(got, "twice") {
					continue
				}
				if got != want || resp.StatusCode != 200 {
					t.Errorf("%s, %s, %s: %d %.60q (%d), want %.60q (%d)", name, proto, framing, resp.StatusCode, got, len(got), want, len(want))
				}
			}
		}
	}
}

// TestPeekRefuses bodies whose fields are not within the bound, if configured. Decided routes do not wait for the rest.
func TestPeekRefuses(t *testing.T) {
	p := startModels(t, func(cfg *httpproxy.Config) { cfg.PeekBytes, cfg.RefuseBeyondPeek = 1000, true })
	pad := `"pad":"` + strings.Repeat("x", 2000) + `"`
	for body, status := range map[string]int{
		`{` + pad + `,"model":"gpt-4"}`:                        413,
		`{"model":"x",` + pad + `}`:                            413, // a tier may come
		`{"tier":1,"n":1,"metadata":{},"model":0,` + pad + `}`: 200,
		`{"model":"gpt-4"}`:                                    200,
		strings.Repeat("x", 2000):                              200, // no object
	} {
		resp, err := http.Post(p.url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%.60q: %s %s, want %d", body, resp.Status, text, status)
		}
	}
}

// TestPeekSends100Continue: a client that waits for 100 Continue gets it from the proxy, once, and keeps its connection.
func TestPeekSends100Continue(t *testing.T) {
	p := startModels(t, nil)
	c, br := dialRaw(t, p.addr)
	for _, framing := range []string{"Content-Length: 17\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"+framing); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, br, 100)
		body := `{"model":"gpt-4"}`
		if strings.HasPrefix(framing, "T") {
			body = "11\r\n" + body + "\r\n0\r\n\r\n"
		}
		if resp, got := roundTrip(t, c, br, body); resp.StatusCode != 200 || resp.Close || got != toldBy("gpt", `{"model":"gpt-4"}`) {
			t.Errorf("%s, close %t, %q", resp.Status, resp.Close, got)
		}
	}
}

// TestPeekOfBadFraming: a body with invalid framing is refused while it is peeked at.
func TestPeekOfBadFraming(t *testing.T) {
	p := startModels(t, nil)
	for _, chunks := range []string{"1\r\n{}\r\n", "1\r\n{\r\nx\r\n", "-1\r\n{"} {
		c, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks); err != nil {
			t.Fatal(err)
		}
		if resp := wantStatus(t, br, 400); !resp.Close {
			t.Errorf("%q: the connection goes on", chunks)
		}
	}
}

// TestPeekEnds: the body stops, or the client leaves. No connection to a server is leased.
func TestPeekEnds(t *testing.T) {
	const length = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
	paced(t, func(t testing.TB, unit time.Duration) {
		p := startModels(t, func(cfg *httpproxy.Config) { cfg.ReadHeaderTimeout = unit })
		for _, raw := range []string{length, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"} {
			c, br := dialRaw(t, p.addr)
			if _, err := io.WriteString(c, raw); err != nil {
				t.Fatal(err)
			}
			if resp, _ := readAnswer(t, br); resp.StatusCode != 408 || !resp.Close {
				t.Errorf("%q: %s, close %t", raw, resp.Status, resp.Close)
			}
		}
		c, br := dialRaw(t, p.addr) // a byte at a time
		go func() {
			for b, tick := length, time.NewTicker(unit/4); ; b = " " {
				if _, err := io.WriteString(c, b); err != nil {
					tick.Stop()
					return
				}
				<-tick.C
			}
		}()
		if resp, _ := readAnswer(t, br); resp.StatusCode != 408 || !resp.Close {
			t.Errorf("a body of single bytes: %s, close %t", resp.Status, resp.Close)
		}
	})
	p := startModels(t, nil)
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, length)
	_ = c.Close()
	eventually(t, "the client that left is counted", func() bool { return p.Stats().Errors[listener.ReasonClientGone] == 1 })
}

// TestPeekedIsSent: pipelined requests, in any framing and in any pieces, reach the server that their bodies select, byte
// by byte, and nothing else does.
func TestPeekedIsSent(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 19))
		models, rest := &recorder{}, &recorder{}
		p := startProxy(t, httpproxy.Config{PeekBytes: 256 + random.IntN(40_000), Routes: []httpproxy.Route{
			{Upstream: newUpstream(t, serveRaw(t, rest.serve))},
			{Upstream: newUpstream(t, serveRaw(t, models.serve)), Path: "/m", Body: []httpproxy.FieldMatch{{Name: "model", Value: "a"}}},
		}})
		var raw strings.Builder
		var wantModels, wantRest []string
		for i := range 8 {
			body, model := randomBody(random)
			path := "/" + strconv.Itoa(i)
			if random.IntN(4) > 0 {
				path = "/m" + path
			}
			request := "POST " + path + " " + body
			if strings.HasPrefix(path, "/m/") && model {
				wantModels = append(wantModels, request)
			} else {
				wantRest = append(wantRest, request)
			}
			raw.WriteString("POST " + path + " HTTP/1.1\r\nHost: a\r\nX-Pad: " + strings.Repeat("p", random.IntN(600)) + "\r\n" + frameRandomly(random, body))
		}
		answers := sendInPieces(t, random, p.addr, raw.String())
		if got := fmt.Sprint(models.seen(), models.garbage); got != fmt.Sprint(wantModels, []string(nil)) {
			t.Errorf("seed %d: models got %.300s, want %.300s", seed, got, fmt.Sprint(wantModels))
		}
		if got := fmt.Sprint(rest.seen(), rest.garbage); got != fmt.Sprint(wantRest, []string(nil)) {
			t.Errorf("seed %d: the rest got %.300s, want %.300s", seed, got, fmt.Sprint(wantRest))
		}
		if answers != 9 {
			t.Errorf("seed %d: %d answers", seed, answers)
		}
	}
}

// randomBody makes a body with the model within the first 256 bytes, or nowhere.
func randomBody(random *rand.Rand) (body string, model bool) {
	var b strings.Builder
	b.WriteString("{")
	if model = random.IntN(2) == 0; model {
		b.WriteString(`"model":"a",`)
	}
	for i := range random.IntN(5) {
		fmt.Fprintf(&b, `"k%d":[%d,"%s"],`, i, random.IntN(100), strings.Repeat(`\"y`, random.IntN(1<<random.IntN(14))))
	}
	b.WriteString(`"z":{}}` + strings.Repeat(" ", random.IntN(3)))
	return b.String(), model
}

// frameRandomly gives a body its length, or chunks.
func frameRandomly(random *rand.Rand, body string) string {
	if random.IntN(2) == 0 {
		return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	framed := "Transfer-Encoding: chunked\r\n\r\n"
	for len(body) > 0 {
		n := min(len(body), 32+random.IntN(1<<random.IntN(15)))
		framed += fmt.Sprintf("%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return framed + "0\r\n\r\n"
}

// sendInPieces sends requests and a last one that ends the connection, and counts the correct answers.
func sendInPieces(t *testing.T, random *rand.Rand, addr, raw string) (answers int) {
	t.Helper()
	c, br := dialRaw(t, addr)
	sent := make(chan error, 1)
	raw += "GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	most := 1 << (3 + random.IntN(14))
	go func() {
		r := rand.New(rand.NewPCG(uint64(most), 1))
		for len(raw) > 0 {
			n := min(len(raw), 1+r.IntN(most))
			if _, err := io.WriteString(c, raw[:n]); err != nil {
				sent <- err
				return
			}
			raw = raw[n:]
		}
		sent <- nil
	}()
	for {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			break
		}
		if body, err := io.ReadAll(resp.Body); resp.StatusCode == 200 && string(body) == "ok" && err == nil {
			answers++
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	return answers
}
