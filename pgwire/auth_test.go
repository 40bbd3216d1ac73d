package pgwire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// exchange runs both sides of SCRAM.
func exchange(v pgwire.ScramVerifier, password string) error {
	client, server := pgwire.NewScramClient(password), pgwire.NewScramServer(v)
	first, err := server.First(client.First())
	if err != nil {
		return err
	}
	final, err := client.Continue(first)
	if err != nil {
		return err
	}
	proof, err := server.Final(final)
	if err != nil {
		return err
	}
	return client.Verify(proof)
}

func TestScram(t *testing.T) {
	// SCRAM-SHA-256 of "foo" as PostgreSQL's tests have it.
	stored := "SCRAM-SHA-256$1:Zm9vYmFy$vzeT5KRwmZpfyrWgxcEldHGDIFJVPfv5sVZzRmFfQwc=:4EwTLgjnT6yOmhTgtIc+FXGOWyfBBKBXYFvgQqsLY+0="
	if _, err := pgwire.ParseScramVerifier(stored); err != nil {
		t.Fatal(err)
	}
	v, err := pgwire.NewScramVerifier("päss, word=", nil, 16)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := pgwire.ParseScramVerifier(v.String())
	if err != nil || parsed.String() != v.String() {
		t.Fatal(parsed, err)
	}
	if err := exchange(parsed, "päss, word="); err != nil {
		t.Error(err)
	}
	if err := exchange(parsed, "pass, word="); !errors.Is(err, pgwire.ErrAuth) {
		t.Errorf("wrong password: %v", err)
	}
	mock := pgwire.MockScramVerifier([]byte("key"), "nobody")
	if err := exchange(mock, "anything"); !errors.Is(err, pgwire.ErrAuth) {
		t.Errorf("unknown user: %v", err)
	}
	if mock.String() != pgwire.MockScramVerifier([]byte("key"), "nobody").String() ||
		mock.String() == pgwire.MockScramVerifier([]byte("key"), "other").String() {
		t.Error("a mock verifier must be constant for a user, and different for another")
	}
}

func TestScramVectorRFC7677(t *testing.T) {
	salt := "W22ZaJ0SNY7soEsUEjb6gQ=="
	v, err := pgwire.ParseScramVerifier("SCRAM-SHA-256$4096:" + salt + "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(v, "pencil"); err != nil {
		t.Error(err)
	}
}

func TestScramRefuses(t *testing.T) {
	v, err := pgwire.NewScramVerifier("x", nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{"", "n", "n,,", "p=tls-unique,,n=,r=abc", "n,a=me,n=,r=abc", "n,,n=,r=", "n,,r=abc,n=", "n,,n=,r=a\x01"} {
		if _, err := pgwire.NewScramServer(v).First([]byte(first)); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("client-first %q: %v", first, err)
		}
	}
	server := pgwire.NewScramServer(v)
	if _, err := server.First([]byte("n,,n=,r=abc")); err != nil {
		t.Fatal(err)
	}
	for _, final := range []string{"", "c=biws,r=abc", "c=biws,r=abc,p=!", "c=biws,r=abc,p=" + strings.Repeat("A", 43) + "=", "r=abc,c=biws,p=AA=="} {
		if _, err := server.Final([]byte(final)); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("client-final %q: %v", final, err)
		}
	}
	for _, first := range []string{"", "r=x,s=AAAA,i=1", "e=other-error"} {
		if _, err := pgwire.NewScramClient("x").Continue([]byte(first)); err == nil {
			t.Errorf("server-first %q accepted", first)
		}
	}
	if err := pgwire.NewScramClient("x").Verify([]byte("v=AAAA")); !errors.Is(err, pgwire.ErrAuth) {
		t.Error(err)
	}
	for _, s := range []string{"", "SCRAM-SHA-256$", "SCRAM-SHA-256$0:AAAA$AAAA:AAAA", "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA"} {
		if _, err := pgwire.ParseScramVerifier(s); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("verifier %q: %v", s, err)
		}
	}
}

func TestMD5(t *testing.T) {
	secret := pgwire.MD5Secret("app", "secret")
	salt := [4]byte{1, 2, 3, 4}
	if !pgwire.IsMD5Secret(secret) || pgwire.IsMD5Secret("md5short") || pgwire.IsMD5Secret("secret") {
		t.Error("IsMD5Secret")
	}
	answer := pgwire.MD5Response(secret, salt)
	if !pgwire.VerifyMD5(secret, salt, answer) || pgwire.VerifyMD5(secret, [4]byte{}, answer) || pgwire.VerifyMD5(secret, salt, "") {
		t.Error("VerifyMD5")
	}
}
