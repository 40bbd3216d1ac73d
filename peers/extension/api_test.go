package extension_test

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/mockllm"
)

// openAI is a mock of a server with the API of OpenAI. It tells its name, and which path it was asked for.
func openAI(t *testing.T, name string) (address string) {
	t.Helper()
	model := &mockllm.Server{Answer: func(r *mockllm.Request) iter.Seq2[string, error] {
		return mockllm.Say(fmt.Sprintf("%s %s %d", name, r.Model, len(r.Last())))
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			model.ServeHTTP(w, r)
			return
		}
		fmt.Fprint(w, name, " ", r.RequestURI, " ", r.Header.Get("X-Forwarded-Host")) // as it is written
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

const apiListener = `
listeners: [{name: api, protocol: peers, listen: "127.0.0.1:0"}]
`

// llm starts a node that offers an LLM server.
func llm(t *testing.T, hub *node, callers, name, groups, more string) *node {
	t.Helper()
	key, _ := keyOf(t)
	return run(t, key, hub.addrs(t), "services:\n  llm: {upstream: llm, allow: ["+callers+"], groups: ["+groups+"]}\nupstreams:\n  llm: {endpoints: [\""+openAI(t, name)+"\"]}\n"+more)
}

// ask sends a request and returns the status, the node that answered and the body.
func ask(t *testing.T, n *node, method, path, body string, headers ...string) (status int, by, text string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+n.Addr("api")+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("X-Computing-Node"), string(all)
}

// answers waits until others answer a node: connecting takes longer than a listener waits, on a machine with much to do.
func answers(t *testing.T, near *node, others ...*node) {
	t.Helper()
	for _, n := range others {
		conntest.Eventually(t, n.id+" answers", func() bool {
			status, _, _ := ask(t, near, "GET", "/v1/p2p/"+n.id+"/llm/v1/models", "")
			return status == http.StatusOK
		})
	}
}

// TestPaths: requests reach services by the paths of OpenTela, by what they are about, and get true statuses.
func TestPaths(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	hubKey, _ := keyOf(t)
	nearKey, nearID := keyOf(t)
	hub := run(t, hubKey, "", "")
	a := llm(t, hub, nearID, "a", `"model=a", "model=shared"`, "")
	b := llm(t, hub, nearID, "b", `"model=*"`, "")
	c := llm(t, hub, nearID, "c", `all`, "")
	near := run(t, nearKey, hub.addrs(t), apiListener+"services:\n  own: {upstream: own, allow: ["+a.id+"]}\nupstreams:\n  own: {endpoints: [\""+openAI(t, "own")+"\"]}\n")
	conntest.Eventually(t, "all are found", func() bool { return len(near.offers("llm")) == 3 })
	answers(t, near, a, b, c)
	const chat = "/v1/service/llm/v1/chat/completions"
	for _, x := range []struct {
		what, method, path, body, fallback string
		status                             int
		by                                 *node
		text                               string
	}{
		{"exact", "POST", chat, `{"model": "a"}`, "", 200, a, `"content":"a a 0 "`},
		{"after messages", "POST", chat, `{"messages": [{"model": "b", "content": "` + strings.Repeat("x", 100_000) + `"}], "model": "a"}`, "", 200, a, `"content":"a a 100000 "`},
		{"no match", "POST", chat, `{"model": "z"}`, "", 503, nil, "no node accepts this request to the service"},
		{"any value", "POST", chat, `{"model": "z"}`, "1", 200, b, `"content":"b z 0 "`},
		{"exact before any", "POST", chat, `{"model": "shared"}`, "2", 200, a, `"content":"a shared 0 "`},
		{"all", "POST", chat, `{"prompt": "z"}`, "2", 200, c, ""},
		{"nonsense fallback", "POST", chat, `{"prompt": "z"}`, "9", 503, nil, ""},
		{"not JSON", "POST", chat, `model=a`, "1", 503, nil, ""},
		{"nobody", "POST", "/v1/service/unknown/x", `{}`, "", 400, nil, `no node offers the service \"unknown\"`},
		{"by peer", "GET", "/v1/p2p/" + b.id + "/llm/some%2Fpath?q=1", "", "", 200, b, "b /some%2Fpath?q=1 "},
		{"as it is written", "GET", "/v1/p2p/" + b.id + "/llm//evil.example/../x", "", "", 200, b, "b //evil.example/../x "},
		{"by peer, as OpenTela", "GET", "/v1/p2p/" + c.id + "/v1/_service/llm/path", "", "", 200, c, "c /path "},
		{"here", "GET", "/v1/_service/own/path", "", "", 200, near, "own /path "},
		{"not here", "GET", "/v1/_service/llm/path", "", "", 404, nil, "this gateway offers no such service"},
		{"by peer and service, as OpenTela", "GET", "/v1/p2p-service/" + c.id + "/llm/path", "", "", 200, c, "c /path "},
		{"no peer", "GET", "/v1/p2p/bob/llm/path", "", "", 400, nil, "is no peer ID"},
		{"unknown peer", "GET", "/v1/p2p/" + someID + "/llm/path", "", "", 502, nil, someID},
		{"unknown service", "GET", "/v1/p2p/" + a.id + "/db/path", "", "", 502, nil, "not offered to this node"},
		{"no path", "GET", "/v2/service/llm", "", "", 404, nil, "want /v1/service/SERVICE"},
		{"no service", "GET", "/v1/service/", "", "", 404, nil, "want /v1/service/SERVICE"},
	} {
		headers := []string{"Accept", "application/json"}
		if x.fallback != "" {
			headers = append(headers, "X-Otela-Fallback", x.fallback)
		}
		status, by, text := ask(t, near, x.method, x.path, x.body, headers...)
		if status != x.status || !strings.Contains(text, x.text) || x.by != nil && by != x.by.id || x.by == nil && by != "" {
			t.Errorf("%s: %d by %q: %s\nwant %d by %v: %s", x.what, status, by, text, x.status, x.by, x.text)
		}
	}
	// Without a body any of them will do, and all of them are asked in time.
	seen := map[string]bool{}
	conntest.Eventually(t, "all three answer", func() bool { // once their records say that they are idle again
		_, by, _ := ask(t, near, "GET", "/v1/service/llm/v1/models", "")
		seen[by] = true
		return len(seen) == 3
	})
	if opened := near.peer(a.id).Opened; opened > 20 {
		t.Errorf("%d connections to one node", opened)
	}
	// One that is killed costs no request that may be sent again.
	b.Close()
	if status, by, text := ask(t, near, "POST", chat, `{"model": "z"}`, "X-Headpond-Fallback", "2"); status != 200 || by != c.id || !strings.Contains(text, `"content":"c z 0 "`) {
		t.Errorf("with a body: %d %s %s", status, by, text) // which is still whole after an attempt
	}
	for range 30 {
		if status, _, text := ask(t, near, "GET", "/v1/service/llm/v1/models", ""); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
}

// TestPathsStream: events arrive as they are sent, and a client that leaves ends the request at the far node.
func TestPathsStream(t *testing.T) {
	next, gone := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
		<-r.Context().Done()
		close(gone)
	}))
	t.Cleanup(server.Close)
	farKey, farID := keyOf(t)
	nearKey, nearID := keyOf(t)
	far := run(t, farKey, "", "services:\n  llm: {upstream: llm, allow: ["+nearID+"]}\nupstreams:\n  llm: {endpoints: [\""+server.Listener.Addr().String()+"\"]}\n")
	near := run(t, nearKey, far.addrs(t), apiListener)
	resp, err := http.Get("http://" + near.Addr("api") + "/v1/p2p/" + farID + "/llm/events")
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := events.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = events.ReadString('\n')
		next <- struct{}{}
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	<-gone
}

// TestLimitsOfAService: who has more requests open than a service allows a peer is told to come again.
func TestLimitsOfAService(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-end
		fmt.Fprint(w, "done")
	}))
	t.Cleanup(server.Close)
	farKey, farID := keyOf(t)
	nearKey, nearID := keyOf(t)
	far := run(t, farKey, "", "services:\n  svc: {upstream: svc, allow: "+nearID+", per_peer: {connections: 1}}\nupstreams: {svc: {endpoints: [\""+server.Listener.Addr().String()+"\"]}}\n")
	near := run(t, nearKey, far.addrs(t), apiListener)
	conntest.Eventually(t, "it is found", func() bool { return len(near.offers("svc")) == 1 })
	path, first := "http://"+near.Addr("api")+"/v1/p2p/"+farID+"/svc/", make(chan string, 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() {
		resp, err := client.Get(path)
		if err != nil {
			first <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		first <- string(text)
	}()
	<-began
	resp, err := client.Get(path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(text), "1 connections to service svc open, the most it may have") {
		t.Errorf("%d %s %v", resp.StatusCode, text, err)
	}
	close(end)
	if got := <-first; got != "done" {
		t.Error(got)
	}
	if s := far.self(t); s.Limited == 0 {
		t.Errorf("%+v", s)
	}
}

// TestAuthorization: a client's token reaches the service only if the listener is told to send it.
func TestAuthorization(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.Header["Authorization"])
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	farKey, farID := keyOf(t)
	nearKey, nearID := keyOf(t)
	far := run(t, farKey, "", "services:\n  llm: {upstream: llm, allow: ["+nearID+"]}\nupstreams:\n  llm: {endpoints: [\""+server.Listener.Addr().String()+"\"]}\n")
	const option = "peers: {forward_authorization: false}"
	near := run(t, nearKey, far.addrs(t), strings.Replace(apiListener, "peers,", "peers, "+option+",", 1))
	for _, path := range []string{"/v1/p2p/" + farID + "/llm/x", "/v1/service/llm/x"} {
		conntest.Eventually(t, "it is found", func() bool { return len(near.offers("llm")) == 1 })
		if _, _, text := ask(t, near, "GET", path, "", "Authorization", "Bearer token"); text != "[]" {
			t.Errorf("%s: the service got %s", path, text)
		}
	}
	if err := near.Reload(near.parse(t, option, strings.Replace(option, "false", "true", 1))); err != nil {
		t.Fatal(err)
	}
	if _, _, text := ask(t, near, "GET", "/v1/p2p/"+farID+"/llm/x", "", "Authorization", "Bearer token"); text != `["Bearer token"]` {
		t.Errorf("the service got %s", text)
	}
}
