package sqlite

import (
	"context"

	"github.com/headpond/headpond/pgwire"
)

// extended handles one message of the extended protocol.
func (s *session) extended(typ byte, body []byte) error {
	var err error
	switch typ {
	case pgwire.TypeParse:
		err = s.parse(body)
	case pgwire.TypeBind:
		err = s.bind(body)
	case pgwire.TypeDescribe:
		err = s.describe(body)
	case pgwire.TypeExecute:
		err = s.execute(body)
	case pgwire.TypeClose:
		err = s.close(body)
	default:
		err = protocolError("unexpected message type %q", typ)
	}
	if err != nil {
		return s.fail(err, true)
	}
	return nil
}

func (s *session) parse(body []byte) error {
	var m pgwire.Parse
	if err := m.Decode(body); err != nil {
		return err
	}
	if m.Name != "" && s.statements[m.Name] != nil {
		return sqlError(pgwire.StateDuplicatePrepared, "prepared statement %q already exists", m.Name)
	}
	if len(s.statements) >= maxStatements {
		return sqlError(pgwire.StateConfigLimitExceeded, "too many prepared statements (limit: %d)", maxStatements)
	}
	statements, err := splitStatements(m.Query)
	if err != nil {
		return err
	}
	if len(statements) > 1 {
		return sqlError(pgwire.StateSyntaxError, "cannot insert multiple commands into a prepared statement")
	}
	src := ""
	if len(statements) == 1 {
		src = statements[0]
	}
	p, err := prepare(src, m.ParamTypes)
	if err == nil {
		err = s.checkFailed(p)
	}
	if err == nil {
		err = s.describeFirst(p)
	}
	if err != nil {
		return shiftPosition(err, m.Query, src)
	}
	delete(s.statements, m.Name) // the unnamed statement is replaced
	if err := checkMemory(s, "prepared statements", s.statements, (*prepared).cost, p); err != nil {
		return err
	}
	s.statements[m.Name] = p
	s.c.Writer.Send(&pgwire.ParseComplete{})
	return nil
}

// describeFirst describes a statement that Parse has made.
func (s *session) describeFirst(p *prepared) error {
	described := p
	switch {
	case p.command != nil && p.command.declare != nil:
		described = p.command.declare.query
	case p.command != nil && p.command.fetch != nil:
		p.command.fields = s.fetchFields(p.command)
	}
	if described.rw == nil || described.described {
		return nil
	}
	err := s.guarded(func(ctx context.Context) error { return s.describePrepared(ctx, described) })
	if described != p {
		p.params = described.params
	}
	return err
}

// checkMemory returns an error if one more statement or portal would exceed the client's memory limit.
func checkMemory[T any](s *session, what string, kept map[string]T, cost func(T) int, more T) error {
	total := cost(more)
	if total <= maxSmall {
		return nil
	}
	for _, k := range kept {
		total += cost(k)
	}
	if limit := keptMessages * s.b.cfg.MaxMessage; total > limit {
		return sqlError(pgwire.StateConfigLimitExceeded, "%s take %d bytes (limit: %d)", what, total, limit)
	}
	return nil
}

// describePrepared compiles the statement to find its types and errors.
func (s *session) describePrepared(ctx context.Context, p *prepared) error {
	h, own := s.pinned, false
	if h == nil {
		var err error
		if h, err = s.acquire(ctx, false); err != nil {
			return err
		}
		own = true
	}
	if own {
		defer h.release()
	}
	if err := s.guard.use(h.conn); err != nil {
		return err
	}
	gen := s.b.generation.Load()
	c, err := h.cs.compile(p.rw, p.src, gen)
	if err != nil {
		return err
	}
	defer c.done()
	if err := h.cs.describe(c, p, gen); err != nil {
		return err
	}
	p.described, p.generation = true, gen
	return nil
}

func (s *session) bind(body []byte) error {
	var m pgwire.Bind
	if err := m.Decode(body); err != nil {
		return err
	}
	prep := s.statements[m.Statement]
	if prep == nil {
		return sqlError(pgwire.StateInvalidStatementName, "prepared statement %q does not exist", m.Statement)
	}
	if err := s.checkFailed(prep); err != nil {
		return err
	}
	if m.Portal != "" && s.portals[m.Portal] != nil {
		return sqlError(pgwire.StateDuplicateCursor, "portal %q already exists", m.Portal)
	}
	if len(m.Params) != len(prep.params) {
		return protocolError("bind message supplies %d parameters, but prepared statement %q requires %d", len(m.Params), m.Statement, len(prep.params))
	}
	if n := len(m.ParamFormats); n > 1 && n != len(m.Params) {
		return protocolError("bind message has %d parameter formats for %d parameters", n, len(m.Params))
	}
	columns := prep.width()
	fetch := prep.command != nil && prep.command.fetch != nil
	if fetch {
		columns = len(s.fetchFields(prep.command))
	}
	if n := len(m.ResultFormats); n > 1 && n != columns {
		return protocolError("bind message has %d result formats for %d columns", n, columns)
	}
	if len(s.portals) >= maxPortals {
		return sqlError(pgwire.StateConfigLimitExceeded, "too many open portals (limit: %d)", maxPortals)
	}
	p := &portal{prep: prep, formats: m.ParamFormats, params: copyParams(m.Params)}
	if fetch {
		if err := s.bindFetch(p, m.ResultFormats, true); err != nil {
			return err
		}
	} else if prep.command == nil && !prep.empty() {
		if p.columns = prep.columns; len(m.ResultFormats) > 0 || p.columns == nil {
			p.columns = append([]column{}, prep.columns...)
		}
		if err := setFormats(p.columns, m.ResultFormats); err != nil {
			return err
		}
	}
	s.closePortal(m.Portal)
	if err := checkMemory(s, "open portals", s.portals, (*portal).cost, p); err != nil {
		return err
	}
	s.portals[m.Portal] = p
	s.c.Writer.Send(&pgwire.BindComplete{})
	return nil
}

// copyParams copies the values, which alias the reader's buffer.
func copyParams(params [][]byte) [][]byte {
	size := 0
	for _, v := range params {
		size += len(v)
	}
	all := make([]byte, 0, size)
	for i, v := range params {
		if v != nil {
			at := len(all)
			all = append(all, v...)
			params[i] = all[at:len(all):len(all)]
		}
	}
	return params
}

func (s *session) describe(body []byte) error {
	var m pgwire.Describe
	if err := m.Decode(body); err != nil {
		return err
	}
	var fields []pgwire.Field
	if m.Object == pgwire.ObjectStatement {
		prep := s.statements[m.Name]
		if prep == nil {
			return sqlError(pgwire.StateInvalidStatementName, "prepared statement %q does not exist", m.Name)
		}
		s.c.Writer.Send(&pgwire.ParameterDescription{Types: prep.params})
		fields = prep.fields()
	} else {
		p := s.portals[m.Name]
		if p == nil {
			return sqlError(pgwire.StateInvalidCursorName, "portal %q does not exist", m.Name)
		}
		fields = p.fields()
	}
	if len(fields) == 0 {
		s.c.Writer.Send(&pgwire.NoData{})
		return nil
	}
	s.c.Writer.Send(&pgwire.RowDescription{Fields: fields})
	return nil
}

func (s *session) execute(body []byte) error {
	var m pgwire.Execute
	if err := m.Decode(body); err != nil {
		return err
	}
	p := s.portals[m.Portal]
	if p == nil {
		return sqlError(pgwire.StateInvalidCursorName, "portal %q does not exist", m.Portal)
	}
	if p.prep.empty() {
		s.c.Writer.Send(&pgwire.EmptyQueryResponse{})
		return nil
	}
	if err := s.checkFailed(p.prep); err != nil {
		return err
	}
	p.lasting = m.Portal != "" && m.MaxRows > 0
	suspended := false
	err := s.guarded(func(ctx context.Context) (err error) {
		suspended, err = s.executePortal(ctx, p, int(m.MaxRows))
		return err
	})
	if err != nil {
		p.close()
		return err
	}
	if suspended {
		s.c.Writer.Send(&pgwire.PortalSuspended{})
	}
	return nil
}

func (s *session) executePortal(ctx context.Context, p *portal, limit int) (suspended bool, err error) {
	switch {
	case p.prep.command != nil && p.prep.command.fetch != nil:
		return s.runFetch(ctx, p, limit)
	case p.prep.verb == "VACUUM" && p.prep.command == nil:
		return false, s.vacuum(ctx, p.prep, true)
	case p.done && p.prep.command == nil:
		s.c.Writer.Send(&pgwire.CommandComplete{Tag: p.prep.tag(0)})
		return false, nil
	case p.run != nil:
		if err := s.guard.use(p.run.h.conn); err != nil {
			return false, err
		}
	case p.prep.command == nil:
		if err := s.open(ctx, p); err != nil {
			return false, err
		}
	case p.rows == nil:
		if err := s.runCommand(ctx, p); err != nil {
			return false, err
		}
	}
	suspended, err = s.stream(p, limit)
	if p.run != nil {
		s.guard.drop(p.run.h.conn)
	}
	return suspended, err
}

func (s *session) close(body []byte) error {
	var m pgwire.Close
	if err := m.Decode(body); err != nil {
		return err
	}
	if m.Object == pgwire.ObjectStatement {
		delete(s.statements, m.Name)
	} else {
		s.closePortal(m.Name)
	}
	s.c.Writer.Send(&pgwire.CloseComplete{})
	return nil
}
