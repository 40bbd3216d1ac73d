package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
)

// Schema is the version of the format. A removed field, or one with a new meaning, makes a new version; a new field
// does not.
const Schema = 1

// ErrSchema means that a file was written by another version of the program.
var ErrSchema = errors.New("not the results of this version")

// ErrFormat means that a file is damaged or does not contain results.
var ErrFormat = errors.New("not a results.json of headpond bench")

// Results is one benchmark run.
type Results struct {
	Schema    int               `json:"schema"`
	Command   string            `json:"command"`
	Started   time.Time         `json:"started"`
	Machine   Machine           `json:"machine"`
	Versions  map[string]string `json:"versions"` // of Headpond, Go and the peers
	Settings  Settings          `json:"settings"`
	Generator Generator         `json:"generator"`
	Missing   []string          `json:"missing,omitempty"` // what was not measured, and what to install to measure it
	Cases     []*Case           `json:"cases"`
}

// Machine describes the machine.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	Memory int64   `json:"memory_bytes"`
	Kernel string  `json:"kernel"`
	OS     string  `json:"os"`
	TCP    string  `json:"tcp,omitempty"`    // default congestion control; one that paces makes loopback expensive
	Shares string  `json:"shares,omitempty"` // what has equal shares of the processors: sessions (each measured program has one) or threads
	Load   float64 `json:"load"`             // load average of the last minute before the run; above 0.5 other programs were running
}

// Settings must be the same in a resumed run and in the one that it continues.
type Settings struct {
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"` // of each round
	Quick   bool    `json:"quick"`
	Loops   int     `json:"loops"` // of the gateway; threads of HAProxy and workers of nginx
}

// Generator describes the accuracy of the load generator on this machine.
type Generator struct {
	Threads int `json:"threads"`
	// KnownMicros is the known delay of a server, MeasuredMicros the generator's measurement of it.
	KnownMicros    float64 `json:"known_us"`
	MeasuredMicros float64 `json:"measured_us"`
	Omitted        float64 `json:"omitted"`
	Problem        string  `json:"problem,omitempty"`
}

// Case is one table: a workload, measured on several arms.
type Case struct {
	ID       string   `json:"id"` // "W1c/64"
	Suite    string   `json:"suite"`
	Title    string   `json:"title"`
	Note     string   `json:"note,omitempty"`
	Claim    string   `json:"claim,omitempty"`   // what the study published
	Because  string   `json:"because,omitempty"` // why our figures differ
	Baseline string   `json:"baseline"`          // the arm that ratios refer to
	Floor    string   `json:"floor,omitempty"`   // the arm whose cost is that of the measurement itself; see Net
	Metrics  []string `json:"metrics"`           // the first is the main one
	Rate     float64  `json:"rate,omitempty"`    // requested operations per second; 0 = as many as possible
	Conns    int      `json:"conns,omitempty"`
	// Others is the fraction of the processors' time that other programs used meanwhile, from 0 to 1.
	Others float64 `json:"others,omitempty"`
	Arms   []*Arm  `json:"arms"`
}

// Arm is one of the compared programs.
type Arm struct {
	Name   string   `json:"name"`
	Error  string   `json:"error,omitempty"` // why figures or rounds are missing
	Rounds []Sample `json:"rounds"`
	// Extra are figures taken once, outside the rounds.
	Extra map[string]float64 `json:"extra,omitempty"`
	// Latency contains the operations of all rounds; nil if it was not measured.
	Latency *hist.Histogram `json:"latency,omitempty"`
}

// Sample is one round of one arm.
type Sample struct {
	Values  map[string]float64 `json:"values"`
	Latency *hist.Histogram    `json:"-"` // kept in the arm
}

// Add appends a round. A figure that is no number, such as the quotient of a round in which a busy machine did nothing, is left
// out.
func (a *Arm) Add(s Sample) {
	maps.DeleteFunc(s.Values, func(_ string, x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	a.Rounds = append(a.Rounds, s)
	if s.Latency == nil {
		return
	}
	if a.Latency == nil {
		a.Latency = new(hist.Histogram)
	}
	a.Latency.Merge(s.Latency)
}

// Net returns the case with the cost of measuring subtracted: from each round of an arm the same round of the floor. It
// is nil if the case has no measured floor.
func (c *Case) Net() *Case {
	floor := c.Arm(c.Floor)
	if floor == nil || len(floor.Rounds) == 0 {
		return nil
	}
	net := *c
	net.Arms = nil
	for _, a := range c.Arms {
		if a == floor {
			continue
		}
		n := &Arm{Name: a.Name, Error: a.Error}
		for i := range min(len(a.Rounds), len(floor.Rounds)) {
			v := map[string]float64{}
			for id, x := range a.Rounds[i].Values {
				v[id] = x - floor.Rounds[i].Values[id]
			}
			n.Rounds = append(n.Rounds, Sample{Values: v})
		}
		net.Arms = append(net.Arms, n)
	}
	return &net
}

// Load reads a file written by Save.
func Load(path string) (*Results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var version struct{ Schema int }
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrFormat, err)
	}
	if version.Schema != Schema {
		return nil, fmt.Errorf("%s: %w: it has schema %d, this program reads %d; measure again, or use the headpond-bench that wrote it", path, ErrSchema, version.Schema, Schema)
	}
	var r Results
	err = json.Unmarshal(data, &r)
	if err == nil {
		err = r.whole()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrFormat, err)
	}
	return &r, nil
}

// whole returns an error if a field is missing that Save always writes.
func (r *Results) whole() error {
	for i, c := range r.Cases {
		if c == nil || c.ID == "" || len(c.Metrics) == 0 {
			return fmt.Errorf("case %d has no name or no metrics", i)
		}
		if slices.Contains(c.Arms, nil) {
			return fmt.Errorf("case %s has an arm that is none", c.ID)
		}
	}
	return nil
}

// Save replaces the file atomically: an interrupt leaves the old or the new one.
func (r *Results) Save(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Case returns the case with the id, or nil.
func (r *Results) Case(id string) *Case {
	i := slices.IndexFunc(r.Cases, func(c *Case) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return r.Cases[i]
}

// Arm returns the arm with the name, or nil.
func (c *Case) Arm(name string) *Arm {
	i := slices.IndexFunc(c.Arms, func(a *Arm) bool { return a.Name == name })
	if i < 0 {
		return nil
	}
	return c.Arms[i]
}
