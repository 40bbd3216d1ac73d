package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// modelsInterval is how often a service is asked for its models. It is also asked as soon as it works again.
	modelsInterval = 5 * time.Second
	// modelsTimeout bounds one request. A server that is loading a model may answer late.
	modelsTimeout = 10 * time.Second
	// modelsKept is how long the last answer of a service is used while the service works but does not
	// answer.
	modelsKept = 30 * time.Second
	// maxModelsAnswer bounds an answer in bytes.
	maxModelsAnswer = 1 << 20
	// maxModels bounds all models of a node in its record, in bytes.
	maxModels = 8 << 10
)

// modelGroup is the prefix of the groups for models.
const modelGroup = "model="

// models has the models of this node's services with Service.Models.
type models struct {
	node *Node
	work sync.WaitGroup // running requests

	mu  sync.Mutex // held for a few instructions
	all map[string]*served
}

// served has the known models of a service.
type served struct {
	groups []string
	asked  time.Time // when the last request began; zero: ask at once
	known  time.Time // when groups were read
	asking bool
	errors string // the error of the last request, to log each only once
}

// run asks the services for their models until the node ends.
func (m *models) run() {
	defer m.work.Wait()
	tick := time.NewTicker(tableInterval)
	defer tick.Stop()
	for {
		m.refresh(time.Now())
		select {
		case <-m.node.life.Done():
			return
		case <-tick.C:
		}
	}
}

// refresh asks each healthy service that was last asked modelsInterval ago, and removes the models
// of services that are not healthy.
func (m *models) refresh(now time.Time) {
	var asked []Service
	for _, s := range m.node.gossip.current() {
		if s.Models != "" {
			asked = append(asked, s)
		}
	}
	working := map[string]bool{}
	for _, s := range asked {
		working[s.Name] = s.Healthy == nil || s.Healthy()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, known := range m.all {
		if !working[name] && !known.asking {
			delete(m.all, name)
		}
	}
	for _, s := range asked {
		known := m.all[s.Name]
		switch {
		case !working[s.Name]:
			continue
		case known == nil:
			known = &served{}
			m.all[s.Name] = known
		case known.asking || now.Sub(known.asked) < modelsInterval:
			continue
		}
		known.asking, known.asked = true, now
		m.work.Go(func() { m.ask(s, maxModels/len(asked)) })
	}
}

// ask asks a service for its models. Their groups may take room bytes.
func (m *models) ask(s Service, room int) {
	ctx, cancel := context.WithTimeout(m.node.life, modelsTimeout)
	defer cancel()
	ids, err := askModels(ctx, s)
	groups, left := groupsOf(ids, s.Groups, room)
	if left > 0 {
		err = fmt.Errorf("%d of %d models are left out: at most %d groups, %d bytes together and %d bytes each are possible", left, len(ids), maxGroups, room, maxModelName)
	}
	if m.node.life.Err() != nil {
		return
	}
	m.mu.Lock()
	known := m.all[s.Name]
	before := known.groups
	known.asking = false
	now := time.Now()
	switch {
	case err == nil || left > 0:
		known.groups, known.known = groups, now
	case now.Sub(known.known) > modelsKept:
		known.groups = nil
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	news := known.errors != text
	known.errors = text
	after := known.groups
	m.mu.Unlock()
	switch {
	case err != nil && news:
		m.node.log.Warn("peers: models of a service", "service", s.Name, "path", s.Models, "error", err)
	case !slices.Equal(before, after):
		m.node.log.Info("peers: models of a service", "service", s.Name, "models", modelNames(after))
	}
	if !slices.Equal(before, after) {
		m.node.gossip.signal()
	}
}

// groups returns the groups of a service: its own and its models.
func (m *models) groups(s *Service) []string {
	if s.Models == "" {
		return s.Groups
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.all[s.Name]; known != nil {
		return slices.Concat(s.Groups, known.groups)
	}
	return s.Groups
}

// maxModelName bounds the name of a model in bytes.
const maxModelName = maxGroup - len(modelGroup)

// groupsOf returns sorted groups for models, and the number of models left out. own are the
// configured groups of the service.
func groupsOf(ids, own []string, room int) (groups []string, left int) {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		g := modelGroup + id
		switch {
		case slices.Contains(own, g):
		case id == "" || id == "*" || len(id) > maxModelName || len(own)+len(groups) >= maxGroups || room < len(g):
			left++
		default:
			groups, room = append(groups, g), room-len(g)
		}
	}
	return groups, left
}

func modelNames(groups []string) (names []string) {
	for _, g := range groups {
		names = append(names, strings.TrimPrefix(g, modelGroup))
	}
	return names
}

// errModels: the response is not a list of models.
var errModels = errors.New("want an OpenAI-compatible list of models")

// askModels asks a server for its models (OpenAI API reference, "List models"). Some servers, such as Ollama, serve local names only.
func askModels(ctx context.Context, s Service) ([]string, error) {
	client := http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Connect(ctx) },
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+s.Models, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok { // the log line has the path
			err = ue.Err
		}
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: the status is %s", errModels, answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxModelsAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxModelsAnswer {
		return nil, fmt.Errorf("%w: more than %d bytes", errModels, maxModelsAnswer)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", errModels, err)
	}
	if list.Data == nil {
		return nil, fmt.Errorf(`%w: there is no "data"`, errModels)
	}
	ids := make([]string, 0, len(list.Data))
	for _, model := range list.Data {
		ids = append(ids, model.ID)
	}
	return ids, nil
}

// CheckModels returns an error for an invalid path of a list of models.
func CheckModels(path string) error {
	u, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || u.Host != "" {
		return errors.New("want a path such as /v1/models")
	}
	return nil
}
