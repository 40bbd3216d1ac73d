package gateway

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
)

// Check reports what config.Load cannot know: problems inside the files that cfg names. It binds and connects to nothing.
func Check(cfg *config.Config) config.Problems {
	var problems config.Problems
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if l.Postgres == nil {
			continue
		}
		if _, err := loadUsers(l.Postgres.UsersFile); err != nil {
			problems = append(problems, config.Problem{
				Position: cfg.Mark(&l.Postgres.UsersFile), Scope: fmt.Sprintf("listener %q", l.Name), Message: err.Error(),
			})
		}
	}
	return problems
}
