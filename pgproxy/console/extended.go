package console

import (
	"fmt"

	"github.com/headpond/headpond/pgwire"
)

// Bounds of what a client can make a session keep: the texts and names of all prepared statements take up to 425 KiB, and
// the rows of one portal are what one command has found.
const (
	maxStatements = 100
	maxPrepared   = 4 << 10 // bytes of a text
	maxPortals    = 10
	maxName       = 256 // bytes of the name of a statement or portal: drivers number them
)

// prepared is a prepared statement: one command, or none.
type prepared struct {
	statement *statement // nil = empty
	columns   *result    // without rows; nil = none
}

// portal is a command that is bound, and run by the first Execute.
type portal struct {
	of      *prepared
	formats []int16
	result  *result // nil = not run; without the rows that were sent
}

// suspended returns the portal that has rows left, nil if there is none. A session has one at most: a command may find as
// many rows as there are clients.
func (s *session) suspended() *portal {
	for _, p := range s.portals {
		if p.result != nil && len(p.result.rows) > 0 {
			return p
		}
	}
	return nil
}

// extended handles one message of the extended protocol.
func (s *session) extended(typ byte, body []byte) error {
	switch typ {
	case pgwire.TypeParse:
		return s.parse(body)
	case pgwire.TypeBind:
		return s.bind(body)
	case pgwire.TypeDescribe:
		return s.describe(body)
	case pgwire.TypeExecute:
		return s.execute(body)
	case pgwire.TypeClose:
		return s.close(body)
	}
	return fmt.Errorf("%w: message of type %q", pgwire.ErrMalformed, typ)
}

func (s *session) parse(body []byte) error {
	var m pgwire.Parse
	if err := m.Decode(body); err != nil {
		return err
	}
	list, err := split(m.Query)
	switch {
	case err != nil:
		return err
	case len(m.Query) > maxPrepared:
		return failed(pgwire.StateProgramLimitExceeded, "", "text of %d bytes is over the console's limit of %d for a prepared statement", len(m.Query), maxPrepared)
	case len(m.Name) > maxName:
		return longName(m.Name)
	case len(list) > 1:
		return failed(pgwire.StateSyntaxError, "", "cannot insert multiple commands into a prepared statement")
	case m.Name != "" && s.statements[m.Name] != nil:
		return failed(pgwire.StateDuplicatePrepared, "", "prepared statement %q already exists", clip(m.Name))
	case len(s.statements) >= maxStatements && s.statements[m.Name] == nil:
		return failed(pgwire.StateConfigLimitExceeded, "", "too many prepared statements (limit: %d)", maxStatements)
	}
	p := &prepared{}
	if len(list) == 1 {
		p.statement = &list[0]
		if p.columns, err = describe(p.statement); err != nil {
			return err
		}
	}
	if s.statements == nil {
		s.statements = map[string]*prepared{}
	}
	s.statements[m.Name] = p
	s.c.Writer.Send(&pgwire.ParseComplete{})
	return nil
}

func (s *session) bind(body []byte) error {
	var m pgwire.Bind
	if err := m.Decode(body); err != nil {
		return err
	}
	p := s.statements[m.Statement]
	columns := 0
	if p != nil && p.columns != nil {
		columns = len(p.columns.columns)
	}
	switch {
	case p == nil:
		return noStatement(m.Statement)
	case m.Portal != "" && s.portals[m.Portal] != nil:
		return failed(pgwire.StateDuplicateCursor, "", "portal %q already exists", clip(m.Portal))
	case len(s.portals) >= maxPortals && s.portals[m.Portal] == nil:
		return failed(pgwire.StateConfigLimitExceeded, "", "too many open portals (limit: %d)", maxPortals)
	case len(m.Portal) > maxName:
		return longName(m.Portal)
	case len(m.Params) > 0:
		return failed(pgwire.StateProtocolViolation, "", "bind message supplies %d parameters, but the console's commands have none", len(m.Params))
	case len(m.ResultFormats) > 1 && len(m.ResultFormats) != columns:
		return failed(pgwire.StateProtocolViolation, "", "bind message has %d result formats for %d columns", len(m.ResultFormats), columns)
	}
	if s.portals == nil {
		s.portals = map[string]*portal{}
	}
	s.portals[m.Portal] = &portal{of: p, formats: m.ResultFormats}
	s.c.Writer.Send(&pgwire.BindComplete{})
	return nil
}

func (s *session) describe(body []byte) error {
	var m pgwire.Describe
	if err := m.Decode(body); err != nil {
		return err
	}
	var columns *result
	var formats []int16
	if m.Object == pgwire.ObjectStatement {
		p := s.statements[m.Name]
		if p == nil {
			return noStatement(m.Name)
		}
		columns = p.columns
		s.c.Writer.Send(&pgwire.ParameterDescription{})
	} else {
		p := s.portals[m.Name]
		if p == nil {
			return noPortal(m.Name)
		}
		columns, formats = p.of.columns, p.formats
	}
	if columns == nil {
		s.c.Writer.Send(&pgwire.NoData{})
		return nil
	}
	s.c.Writer.Send(&pgwire.RowDescription{Fields: columns.fields(formats)})
	return nil
}

func (s *session) execute(body []byte) error {
	var m pgwire.Execute
	if err := m.Decode(body); err != nil {
		return err
	}
	p := s.portals[m.Portal]
	switch {
	case p == nil:
		return noPortal(m.Portal)
	case p.of.statement == nil:
		s.c.Writer.Send(&pgwire.EmptyQueryResponse{})
		return nil
	case p.result == nil && s.suspended() != nil:
		return failed(pgwire.StateConfigLimitExceeded, "Fetch all rows of the other portal, or close it.", "too many portals with rows left (limit: 1)")
	case p.result == nil:
		r, err := s.run(p.of.statement)
		if err != nil {
			return err
		}
		p.result = r
		s.sendNotices(r)
	}
	rows := p.result.rows
	if m.MaxRows > 0 && uint64(len(rows)) > uint64(m.MaxRows) {
		rows = rows[:m.MaxRows]
	}
	p.result.rows = p.result.rows[len(rows):]
	if len(p.result.rows) == 0 {
		p.result.rows = nil // frees them
	}
	if err := s.sendRows(p.result, rows, p.formats); err != nil {
		return err
	}
	if len(p.result.rows) > 0 {
		s.c.Writer.Send(&pgwire.PortalSuspended{})
		return nil
	}
	s.c.Writer.Send(&pgwire.CommandComplete{Tag: p.result.tag})
	return nil
}

func (s *session) close(body []byte) error {
	var m pgwire.Close
	if err := m.Decode(body); err != nil {
		return err
	}
	if m.Object == pgwire.ObjectStatement {
		delete(s.statements, m.Name)
	} else {
		delete(s.portals, m.Name)
	}
	s.c.Writer.Send(&pgwire.CloseComplete{})
	return nil
}

func noStatement(name string) error {
	return failed(pgwire.StateInvalidStatementName, "", "prepared statement %q does not exist", clip(name))
}

func longName(name string) error {
	return failed(pgwire.StateProgramLimitExceeded, "", "name of %d bytes is over the console's limit of %d", len(name), maxName)
}

func noPortal(name string) error {
	return failed(pgwire.StateInvalidCursorName, "", "portal %q does not exist", clip(name))
}
