package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// AuthQuery finds the secrets of clients' users that Config.Users does not list, by a query of a server.
type AuthQuery struct {
	// SQL is a query with the user's name as $1. It returns a row of two columns, the name and the secret, or no row. The
	// secret is "md5" and a digest, or a SCRAM-SHA-256 verifier, as in pg_authid.rolpassword. A user without a row, or
	// with another secret, cannot log in.
	SQL string
	// From runs the query. A *Postgres does, as its own user, with search_path = pg_catalog, pg_temp: the query has to
	// name schemas. No client's sessions should have this user: they could read secrets as the query does.
	From SecretSource
}

// SecretSource runs the SQL of an AuthQuery. Its methods may be called from any goroutine.
type SecretSource interface {
	// Secret returns a user's secret, "" if the user does not exist or has none. Errors wrap ErrAuthQuery. They and the
	// log never show a secret.
	Secret(ctx context.Context, sql, user string) (string, error)
}

// ErrAuthQuery means that a user's secret could not be asked for: the server does not answer, the query fails, or it
// returns something else than one secret.
var ErrAuthQuery = errors.New("auth_query failed")

// verify returns the problems of a.
func (a AuthQuery) verify(auth Auth) (errs []error) {
	switch {
	case a == (AuthQuery{}):
		return nil
	case auth == AuthTrust:
		errs = append(errs, errors.New("AuthQuery has no effect with auth trust"))
	case a.From == nil:
		errs = append(errs, errors.New("AuthQuery has no server to ask: From is nil"))
	}
	if !strings.Contains(a.SQL, "$1") || strings.Contains(a.SQL, "\x00") {
		errs = append(errs, errors.New("AuthQuery.SQL does not use the user's name, $1, or has a NUL character in it"))
	}
	return errs
}

// How long the answer of an AuthQuery is used, in which time a login costs no query. A wrong password ends it early,
// after answerSettled, because the password may have been changed; not at once, so that a client that guesses makes one
// query in that time. An error is remembered for as long, for the clients that wait for the same answer.
const (
	answerLife    = 10 * time.Second
	answerSettled = time.Second
)

// Clients choose the names of the users whose answers are kept: maxAnswers of them, some 600 bytes each, and no names
// that PostgreSQL cannot have (NAMEDATALEN).
const (
	maxAnswers  = 10_000
	maxUserName = 63 // bytes
)

// answer is what an AuthQuery has returned for a user.
type answer struct {
	cred  *credential // nil = the user cannot log in
	roles []string    // of memberSQL
	unfit error       // why not, for the log; nil = there is no such user, or the user has no secret
	err   error
	at    time.Duration // by clock
}

// usable reports whether the answer may be used.
func (a *answer) usable() bool {
	if a.err != nil {
		return clock()-a.at < answerSettled
	}
	return clock()-a.at < answerLife
}

// answers are the answers of a listener's AuthQuery, or of memberSQL, under the present settings.
type answers struct {
	query AuthQuery
	read  func(user, text string) *answer // reads what the query has returned, "" for no row

	mu     sync.Mutex // held for a few instructions
	byUser map[string]*answer
	asking map[string]*question
}

// question is a query for a user that is under way. The sources of clients take turns: a client whose user somebody else asks for
// already, behind many invented names perhaps, asks for it, too.
type question struct {
	by   []uint64        // the sources that ask
	over context.Context //nolint:containedctx // ends when one has an answer, or none asks any more
	end  context.CancelFunc
}

// mostAsk is how many sources ask for a user at once. The others wait for them: when a server is back, all may come at a time.
// Those that wait longer than askPatience ask, too, because the sources that ask may have invented names before that user.
const mostAsk = 2

// askPatience is shorter in tests.
var askPatience = time.Second

func newAnswers(query AuthQuery, read func(user, text string) *answer) *answers {
	return &answers{query: query, read: read, byUser: map[string]*answer{}, asking: map[string]*question{}}
}

// find returns the answer for a user, and asks the server unless there is one, until the client has left or its time for the login is over.
// Clients that log in as the same user at the same time cause one query. On a fiber it does not hold the loop.
func (a *answers) find(ctx context.Context, client *startup, user string) (found *answer, err error) {
	if found = a.known(user); found == nil {
		fiber.Block(func() {
			ctx, stop := context.WithDeadline(ctx, client.accepted.Accepted().Add(client.set.LoginTimeout))
			defer stop()
			ctx, left := context.WithCancelCause(ctx)
			defer left(nil)
			client.noteLeft(ctx, left)
			source := maphash.Comparable(client.proxy.failures.seed, client.source())
			found, err = a.ask(withSource(ctx, source), user, source)
		})
	}
	if err == nil {
		err = found.err
	}
	return found, err
}

// errLeft ends the wait for an answer: nobody needs that any more.
var errLeft = errors.New("the client has left during the look-up")

// noteLeft calls left once the client has left, until ctx ends. It looks every watchInterval: a look-up takes less, and costs a timer.
func (g *startup) noteLeft(ctx context.Context, left context.CancelCauseFunc) {
	time.AfterFunc(watchInterval, func() {
		switch {
		case ctx.Err() != nil:
		case g.conn.PeerClosed():
			left(errLeft)
		default:
			g.noteLeft(ctx, left)
		}
	})
}

// known returns a fresh answer, or nil.
func (a *answers) known(user string) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.byUser[user]; found != nil && found.usable() {
		return found
	}
	return nil
}

// ask waits for an answer, of its own query or of one that is under way. The error is ctx's.
func (a *answers) ask(ctx context.Context, user string, source uint64) (*answer, error) {
	for late := false; ; {
		found, q, mine := a.begin(user, source, late)
		if mine {
			found = a.run(ctx, user, source, q)
			if found != nil && late && errors.Is(found.err, errSecretsWait) {
				found = nil // others still ask
			}
		}
		if found != nil {
			return found, nil
		}
		select {
		case <-q.over.Done():
			late = false
		case <-time.After(askPatience):
			late = true
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no answer in time: %w", ErrAuthQuery, context.Cause(ctx))
		}
	}
}

// begin returns a fresh answer, or the question to wait for; mine means that the caller is to ask the server, too.
// late means that it has waited for askPatience.
func (a *answers) begin(user string, source uint64, late bool) (found *answer, q *question, mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found = a.byUser[user]; found != nil && found.usable() {
		return found, nil, false
	}
	switch q = a.asking[user]; {
	case q == nil:
		q = &question{}
		q.over, q.end = context.WithCancel(context.Background())
		a.asking[user] = q
	case len(q.by) >= mostAsk && !late || slices.Contains(q.by, source):
		return nil, q, false
	}
	q.by = append(q.by, source)
	return nil, q, true
}

// run asks the server, and publishes the answer. If the caller's time is over, others ask again. The result is nil if
// another source has asked meanwhile.
func (a *answers) run(ctx context.Context, user string, source uint64, q *question) *answer {
	found := &answer{err: fmt.Errorf("%w: panic", ErrAuthQuery)}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(q.over, stop)() // gives its turn up
	defer func() {
		found.at = clock()
		a.mu.Lock()
		defer a.mu.Unlock()
		answered := ctx.Err() == nil && (found.err == nil || q.over.Err() == nil && !errors.Is(found.err, errSecretsWait))
		if answered {
			a.makeRoom()
			a.byUser[user] = found
		}
		q.by = slices.DeleteFunc(q.by, func(by uint64) bool { return by == source })
		if a.asking[user] == q && (answered || len(q.by) == 0) {
			delete(a.asking, user)
			q.end()
		}
	}()
	text, err := a.query.From.Secret(ctx, a.query.SQL, user)
	if err == nil {
		found = a.read(user, text)
		return found
	}
	if found = (&answer{err: err}); q.over.Err() != nil {
		return nil
	}
	return found
}

// secrets reads the answers of an AuthQuery.
type secrets struct {
	scram bool        // an md5 secret lets nobody in
	found *iterations // counts the users
}

func (s secrets) read(user, secret string) *answer {
	found := &answer{}
	found.cred, found.unfit = s.credential(user, secret)
	s.found.add(found.cred)
	return found
}

// credential returns the credential of a secret, or why a client cannot log in with it. Passwords are not taken: what a
// user without rights sees in their place, ********, would be one.
func (s secrets) credential(user, secret string) (cred *credential, unfit error) {
	scram := strings.HasPrefix(secret, pgwire.MechanismSCRAM+"$")
	switch {
	case secret == "":
		return nil, nil //nolint:nilnil // there is no such user
	case !scram && !pgwire.IsMD5Secret(secret):
		return nil, errNoHash
	case !scram && s.scram:
		return nil, errMD5Secret
	}
	return newCredential(user, secret)
}

// errNoHash is why a user cannot log in.
var errNoHash = errors.New("a secret that is neither an md5 nor a SCRAM-SHA-256 secret; pg_user and pg_roles show ******** in its place, pg_authid has it")

// makeRoom drops an answer before another one is kept: of a few, one that is too old or that lets nobody in, else any.
func (a *answers) makeRoom() {
	if len(a.byUser) < maxAnswers {
		return
	}
	const few = 20
	victim, seen := "", 0
	for user, found := range a.byUser {
		if victim = user; !found.usable() || found.cred == nil {
			break
		}
		if seen++; seen == few {
			break
		}
	}
	delete(a.byUser, victim)
}

// forget drops an answer with which a client could not log in, if it is old enough for the secret to have changed.
func (a *answers) forget(user string, old *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byUser[user] == old && clock()-old.at >= answerSettled {
		delete(a.byUser, user)
	}
}

// credentialOf returns a user's credential, nil if the user cannot log in, and the answer that it comes from, if any.
func (g *startup) credentialOf(ctx context.Context, user string) (*credential, *answer, error) {
	cred, listed := g.set.credentials[user]
	if listed || g.set.answers == nil || len(user) > maxUserName || !utf8.ValidString(user) {
		return cred, nil, nil
	}
	found, err := g.set.answers.find(ctx, g, user)
	if err != nil {
		return nil, nil, lookUpError(err, fmt.Sprintf("the gateway cannot look up user %q", user))
	}
	return found.cred, found, nil
}

// lookUpError returns the end of a login whose look-up has failed.
func lookUpError(err error, message string) error {
	if errors.Is(err, errLeft) {
		return err
	}
	return &refusal{
		code: pgwire.StateCannotConnectNow, reason: listener.ReasonUpstreamUnavailable, cause: err,
		message: message, hint: "Try again; the gateway's log has the reason.",
	}
}
