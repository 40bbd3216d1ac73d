package sources

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/upstream"
)

// File is the section "file" of "discover".
type File struct {
	Path     config.Path   `conf:"path" required:"true" reread:"true"`
	Interval time.Duration `conf:"interval" default:"1s" min:"10ms" max:"1h"` // how often it is read
}

func init() {
	config.RegisterSource(config.SourceKind{
		Name: "file", Section: &File{}, Scalar: "Path", Check: checkFile,
		New: func(u *config.Upstream) (upstream.Source, error) {
			return &fileSource{*config.DiscoverAs[File](u)}, nil
		},
	})
}

// checkFile reports problems inside the file.
func checkFile(c *config.Checker, u *config.Upstream) {
	f := config.DiscoverAs[File](u)
	if f.Path == "" || !c.NoProblemAt(&f.Path) {
		return
	}
	if _, problems := config.LoadEndpoints(string(f.Path)); problems.Err() != nil {
		c.Report(c.Mark(&f.Path), "%s", oneLine(problems))
	}
}

// fileSource reads a file periodically. That detects every kind of change (another file of the name,
// another target of a symbolic link on the path, a network file system), and costs less than a
// millisecond per second.
type fileSource struct{ File }

var _ upstream.Source = (*fileSource)(nil)

// String implements upstream.Source.
func (s *fileSource) String() string { return "file " + string(s.Path) }

// Watch implements upstream.Source. A bad file is read once more before its error is reported: it may just be being
// written.
func (s *fileSource) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last []byte
	known, suspect := false, true // the first set is reported at once
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.Interval)
		data, err := s.Path.Read()
		if err == nil && known && bytes.Equal(data, last) {
			suspect = false
			continue
		}
		var set []upstream.Endpoint
		if err == nil {
			set, err = parse(string(s.Path), data)
		}
		if err != nil && !suspect {
			suspect = true
			continue
		}
		suspect = false
		known = report(set, err) == nil
		last = data
	}
}

// parse reads a set of endpoints.
func parse(name string, data []byte) ([]upstream.Endpoint, error) {
	list, problems := config.ParseEndpoints(name, data)
	if problems.Err() != nil {
		return nil, errors.New(oneLine(problems))
	}
	return config.EndpointsOf(list), nil
}

func oneLine(problems config.Problems) string {
	return strings.Join(strings.Split(strings.TrimSpace(problems.String()), "\n"), "; ")
}
