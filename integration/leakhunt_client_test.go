package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// wireClient is a client that sends single protocol messages, so that it can disconnect after any of them. One
// goroutine uses it at a time.
type wireClient struct {
	*pgproto3.Frontend
	conn *net.TCPConn
	pid  uint32 // process ID and key from the login's BackendKeyData
	key  []byte
	tx   byte   // of the last ReadyForQuery
	gone string // how the connection ended; "" while it is open
}

// wirePatience bounds the wait for an answer. It measures nothing: a missing answer is reported as "stuck".
const wirePatience = time.Minute

// connectWire logs in without a password. An error has the form of answer's result: "gone 53300", or "stuck".
func connectWire(addr string, params map[string]string) (*wireClient, error) {
	conn, err := net.DialTimeout("tcp", addr, wirePatience)
	if err != nil {
		return nil, err
	}
	c := &wireClient{Frontend: pgproto3.NewFrontend(conn, conn), conn: conn.(*net.TCPConn)}
	c.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: params})
	if answer := c.answer(); answer != "" {
		c.close()
		return nil, errors.New(answer)
	}
	return c, nil
}

// close ends the connection without a Terminate.
func (c *wireClient) close() { _ = c.conn.Close() }

// reset ends the connection with RST.
func (c *wireClient) reset() {
	_ = c.conn.SetLinger(0)
	_ = c.conn.Close()
}

// query sends a Query and returns the answer.
func (c *wireClient) query(sql string) string {
	c.Send(&pgproto3.Query{String: sql})
	return c.answer()
}

// extended sends the messages that drivers send for a statement with parameters, with the unnamed statement, and
// returns the answer.
func (c *wireClient) extended(sql string, args ...string) string {
	c.sendExtended(sql, args...)
	c.Send(&pgproto3.Sync{})
	return c.answer()
}

// sendExtended is extended without the Sync.
func (c *wireClient) sendExtended(sql string, args ...string) {
	c.Send(&pgproto3.Parse{Query: sql})
	c.sendBind("", "", args...)
	c.Send(&pgproto3.Execute{})
}

func (c *wireClient) sendBind(portal, statement string, args ...string) {
	bind := &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement}
	for _, arg := range args {
		bind.Parameters = append(bind.Parameters, []byte(arg))
	}
	c.Send(bind)
}

// function calls a function by its OID, with arguments as text.
func (c *wireClient) function(oid uint32, args ...string) string {
	call := &pgproto3.FunctionCall{Function: oid}
	for _, arg := range args {
		call.Arguments = append(call.Arguments, []byte(arg))
	}
	c.Send(call)
	return c.answer()
}

// answer flushes, reads up to ReadyForQuery, and returns what a test compares: the values of rows, the SQLSTATEs of
// errors, and notifications. It leaves out command tags, notices and row descriptions. For an ended connection it
// returns "gone" with the SQLSTATE of its last error, for a silent one "stuck".
func (c *wireClient) answer() string {
	if c.gone != "" {
		return c.gone
	}
	_ = c.conn.SetDeadline(time.Now().Add(wirePatience))
	if err := c.Flush(); err != nil {
		return c.ended("", err)
	}
	var said []string
	last := ""
	for {
		m, err := c.Receive()
		if err != nil {
			return c.ended(last, err)
		}
		switch m := m.(type) {
		case *pgproto3.ReadyForQuery:
			c.tx = m.TxStatus
			return strings.Join(said, "|")
		case *pgproto3.ErrorResponse:
			last = m.Code
			said = append(said, "ERROR "+m.Code)
		default:
			said = c.note(said, m)
		}
	}
}

// note appends the content of a message to said.
func (c *wireClient) note(said []string, m pgproto3.BackendMessage) []string {
	switch m := m.(type) {
	case *pgproto3.BackendKeyData:
		c.pid, c.key = m.ProcessID, slices.Clone(m.SecretKey)
	case *pgproto3.DataRow:
		values := make([]string, len(m.Values))
		for i, v := range m.Values {
			values[i] = "null"
			if v != nil {
				values[i] = string(v)
			}
		}
		said = append(said, strings.Join(values, ","))
	case *pgproto3.NotificationResponse:
		if n := fmt.Sprintf("notified %s %s", m.Channel, m.Payload); !slices.Contains(said, n) {
			said = append(said, n)
		}
	}
	return said
}

// ended records the end of the connection.
func (c *wireClient) ended(last string, err error) string {
	c.gone = strings.TrimSpace("gone " + last)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.gone = "stuck"
	}
	c.close()
	return c.gone
}

// receiveType reads messages up to one of the type of want.
func (c *wireClient) receiveType(want pgproto3.BackendMessage) string {
	_ = c.conn.SetDeadline(time.Now().Add(wirePatience))
	if err := c.Flush(); err != nil {
		return c.ended("", err)
	}
	for {
		m, err := c.Receive()
		if err != nil {
			return c.ended("", err)
		}
		if fmt.Sprintf("%T", m) == fmt.Sprintf("%T", want) {
			return ""
		}
	}
}

// terminate disconnects as a driver does.
func (c *wireClient) terminate() {
	if c.gone == "" {
		c.Send(&pgproto3.Terminate{})
		_ = c.Flush()
	}
	c.close()
}

// cancel sends a cancel request on a new connection.
func (c *wireClient) cancel(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, wirePatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	f := pgproto3.NewFrontend(conn, conn)
	f.Send(&pgproto3.CancelRequest{ProcessID: c.pid, SecretKey: c.key})
	if err := f.Flush(); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(wirePatience))
	_, _ = conn.Read(make([]byte, 1)) // the server closes when the request has been handled
	return nil
}
