package pgwire_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// exchange runs both sides of SCRAM.
func exchange(v pgwire.ScramVerifier, password string) error {
	return exchangeBy(pgwire.NewScramServer(v, nil), pgwire.NewScramClient(password), []string{pgwire.MechanismSCRAM}, nil)
}

// exchangeBy runs both sides of SCRAM. offered is what the client sees, and binding what it has.
func exchangeBy(server *pgwire.ScramServer, client *pgwire.ScramClient, offered []string, binding []byte) error {
	mechanism, first, err := client.First(offered, binding)
	if err != nil {
		return err
	}
	if first, err = server.First(mechanism, first); err != nil {
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
	mock := pgwire.MockScramVerifier([]byte("key"), "nobody", 5000)
	if err := exchange(mock, "anything"); !errors.Is(err, pgwire.ErrAuth) {
		t.Errorf("unknown user: %v", err)
	}
	if mock.String() != pgwire.MockScramVerifier([]byte("key"), "nobody", 5000).String() ||
		mock.String() == pgwire.MockScramVerifier([]byte("key"), "other", 5000).String() {
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

// The MAC made in place is that of the standard library.
func TestMacOf(t *testing.T) {
	bytesOf := func(n int) []byte { return bytes.Repeat([]byte{0x5a}, n) }
	for _, key := range []int{0, 1, 31, 32, 63, 64, 65, 200} {
		for _, message := range []int{0, 1, 55, 56, 63, 64, 65, 1000} {
			h := hmac.New(sha256.New, bytesOf(key))
			h.Write(bytesOf(message))
			got := pgwire.MacOf(bytesOf(key), append(make([]byte, pgwire.MacRoom), bytesOf(message)...))
			if want := h.Sum(nil); !bytes.Equal(got[:], want) {
				t.Errorf("a key of %d bytes and a message of %d: %x, want %x", key, message, got, want)
			}
		}
	}
}

func TestScramRefuses(t *testing.T) {
	v, err := pgwire.NewScramVerifier("x", nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{"", "n", "n,,", "p=tls-unique,,n=,r=abc", "n,a=me,n=,r=abc", "n,,n=,r=", "n,,r=abc,n=", "n,,n=,r=a\x01"} {
		if _, err := pgwire.NewScramServer(v, nil).First(pgwire.MechanismSCRAM, []byte(first)); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("client-first %q: %v", first, err)
		}
	}
	server := pgwire.NewScramServer(v, nil)
	if _, err := server.First(pgwire.MechanismSCRAM, []byte("n,,n=,r=abc")); err != nil {
		t.Fatal(err)
	}
	for _, final := range []string{"", "c=biws,r=abc", "c=biws,r=abc,p=!", "c=biws,r=abc,p=" + strings.Repeat("A", 43) + "=", "c=biws,r=abc,p=" + strings.Repeat("A", 40) + "\n\n\n\n", "r=abc,c=biws,p=AA=="} {
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

// hmacOf is the standard library's.
func hmacOf(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}

// FuzzScramServer checks that a client that knows the keys is let in whatever its first message is, if it is one, and that
// nobody else is.
func FuzzScramServer(f *testing.F) {
	for _, seed := range [][2]string{
		{"n,,n=,r=rOprNGfwEbeRWgbNEkqO", "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=" + strings.Repeat("A", 43) + "="},
		{"y,,n=user,r=!,x=extension", "c=eSws,r=!"}, {"n,,n=,r=a", ",p="},
	} {
		f.Add(false, []byte(seed[0]), []byte(seed[1]))
	}
	f.Add(true, []byte("p=tls-server-end-point,,n=,r=a"), []byte("c=cD10bHMtc2VydmVyLWVuZC1wb2ludCwsAQ==,r=a,p="))
	clientKey, serverKey := bytes.Repeat([]byte{1}, sha256.Size), bytes.Repeat([]byte{2}, sha256.Size)
	stored := sha256.Sum256(clientKey)
	v := pgwire.ScramVerifier{Iterations: 4096, Salt: []byte("salt"), StoredKey: stored[:], ServerKey: serverKey}
	f.Fuzz(func(t *testing.T, plus bool, first, final []byte) {
		mechanism, binding := pgwire.MechanismSCRAM, []byte(nil)
		if plus {
			mechanism, binding = pgwire.MechanismSCRAMPlus, []byte{1}
		}
		server := pgwire.NewScramServer(v, binding)
		challenge, err := server.First(mechanism, first)
		if err != nil {
			if !errors.Is(err, pgwire.ErrMalformed) {
				t.Fatalf("%v does not wrap ErrMalformed", err)
			}
			return
		}
		if _, err := server.Final(final); !errors.Is(err, pgwire.ErrMalformed) && !errors.Is(err, pgwire.ErrAuth) && !errors.Is(err, pgwire.ErrChannelBinding) {
			t.Fatalf("%q: %v", final, err)
		}
		flag, bare, _ := strings.Cut(string(first), ",,")
		header := flag + ",," + string(binding)
		nonce, rest, _ := strings.Cut(strings.TrimPrefix(string(challenge), "r="), ",")
		_, theirs, _ := strings.Cut(bare, ",r=")
		theirs, _, _ = strings.Cut(theirs, ",")
		if rest != "s=c2FsdA==,i=4096" || !strings.HasPrefix(nonce, theirs) || len(nonce) <= len(theirs) {
			t.Fatalf("%q is answered by %q", first, challenge)
		}
		without := "c=" + base64.StdEncoding.EncodeToString([]byte(header)) + ",r=" + nonce
		auth := bare + "," + string(challenge) + "," + without
		proof := hmacOf(stored[:], auth)
		for i := range proof {
			proof[i] ^= clientKey[i]
		}
		answer, err := server.Final([]byte(without + ",p=" + base64.StdEncoding.EncodeToString(proof)))
		if want := "v=" + base64.StdEncoding.EncodeToString(hmacOf(serverKey, auth)); err != nil || string(answer) != want {
			t.Fatalf("%q, %v; want %q", answer, err, want)
		}
	})
}
