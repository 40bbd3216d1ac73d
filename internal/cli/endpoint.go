package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// endpointUse describes the arguments of `headpond ctl endpoint`.
const endpointUse = "endpoint add|drain|remove|weight UPSTREAM ADDRESS [WEIGHT]"

// endpointFlags defines the flags of `ctl endpoint`. It returns the change that they describe, and which flags were
// given.
func endpointFlags(fs *flag.FlagSet) (c *admin.EndpointChange, given *[]string) {
	c, given = &admin.EndpointChange{}, &[]string{}
	number := func(name string, to *int, most int) func(string) error {
		return func(text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 || n > most {
				return fmt.Errorf("want a number up to %d", most)
			}
			*to, *given = n, append(*given, name)
			return nil
		}
	}
	fs.Func("weight", "with endpoint add: its `weight`, 1 by default", number("weight", &c.Weight, admin.MaxWeight))
	fs.Func("priority", "with endpoint add: its `priority`, 0 by default", number("priority", &c.Priority, admin.MaxPriority))
	fs.BoolFunc("keep", "with endpoint: keep the change over reloads", func(text string) error {
		on, err := strconv.ParseBool(text)
		c.Keep, *given = on, append(*given, "keep")
		return err
	})
	return c, given
}

// endpointActions are the names of the actions of `ctl endpoint`.
func endpointActions() (names []string) {
	for _, a := range admin.EndpointActions() {
		names = append(names, string(a))
	}
	return names
}

// parseEndpoint completes c from the arguments after "endpoint". It returns what is wrong with them, "" if nothing is.
func parseEndpoint(c *admin.EndpointChange, given, args []string) (wrong string) {
	names := endpointActions()
	if len(args) == 0 {
		return "want " + endpointUse
	}
	c.Action = admin.EndpointAction(args[0])
	if !slices.Contains(names, args[0]) {
		wrong = fmt.Sprintf("unknown action %q of endpoint", args[0])
		if hint := config.Closest(args[0], names); hint != "" {
			wrong += fmt.Sprintf("; did you mean %q?", hint)
		}
		return wrong + "; want " + endpointUse
	}
	want := 3
	if c.Action == admin.WeighEndpoint {
		want++
	}
	if len(args) != want {
		return fmt.Sprintf("endpoint %s wants UPSTREAM ADDRESS%s", c.Action, map[bool]string{true: " WEIGHT"}[want == 4])
	}
	for _, name := range given {
		if name != "keep" && c.Action != admin.AddEndpoint {
			return fmt.Sprintf("-%s is for endpoint add", name)
		}
	}
	c.Upstream, c.Address = args[1], args[2]
	if c.Action != admin.WeighEndpoint || args[3] == "default" {
		return ""
	}
	n, err := strconv.Atoi(args[3])
	if err != nil || n < 1 || n > admin.MaxWeight {
		return fmt.Sprintf("weight %q: want a number from 1 to %d, or default", args[3], admin.MaxWeight)
	}
	c.Weight = n
	return ""
}

// ctlEndpoint changes one endpoint.
func ctlEndpoint(e env, address string, c *admin.EndpointChange) error {
	request, err := json.Marshal(c)
	if err != nil {
		return err
	}
	err = askChange(context.Background(), address, http.MethodPost, "/api/v1/endpoints", bytes.NewReader(request), "changes no endpoints"+notLocal)
	if err == nil {
		_, _ = fmt.Fprintf(e.stdout, "%s %s of upstream %s\n", done(c), c.Address, c.Upstream)
	}
	return err
}

// done names the change, as the beginning of a sentence about the endpoint.
func done(c *admin.EndpointChange) string {
	switch c.Action {
	case admin.AddEndpoint:
		return "added"
	case admin.DrainEndpoint:
		return "draining"
	case admin.RemoveEndpoint:
		return "removed"
	}
	if c.Weight == 0 {
		return "default weight for"
	}
	return fmt.Sprintf("weight %d for", c.Weight)
}
