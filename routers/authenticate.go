/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package routers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/network"
)

// timestampWindow is how far a request's timestamp may be from our clock, in
// both directions. The protocol has no expiry of its own.
const timestampWindow = 5 * time.Minute

// Causes of a refusal, for the log only: the client does not get them.
var (
	errWrongSign = errors.New("the signature is wrong: another token, or altered content")
	errNoToken   = errors.New("no token is configured")
	errReplayed  = errors.New("the signature was used before, or expired while the request was read")
)

// noToken is told to whoever asks where no request can be verified. That is no secret,
// and nothing that the one who asks can try again.
const noToken = "this address serves signed requests only, and the operator has no token to verify them: set --altershield-token-file"

// claim is what the headers of a request say of its signature.
type claim struct {
	timestamp string
	at        time.Time
	sign      string
	tokens    []string
}

// readClaim reads the headers. It fails when no content could make the
// signature acceptable, so that such a request costs neither reading nor
// hashing. Its errors quote nothing of the request.
func (s *Server) readClaim(r *http.Request) (*claim, error) {
	if s.opts.Tokens == nil {
		return nil, errNoToken
	}
	tokens, err := s.opts.Tokens.Tokens()
	if err != nil {
		return nil, err
	}
	// Nothing reads the platform and the signature doesn't cover it. A request
	// without it is not of the protocol all the same.
	if _, err := single(r.Header, altershield.HeaderPlatform); err != nil {
		return nil, err
	}
	c := &claim{tokens: tokens}
	if c.sign, err = single(r.Header, altershield.HeaderSign); err != nil {
		return nil, err
	}
	if c.timestamp, err = single(r.Header, altershield.HeaderTimestamp); err != nil {
		return nil, err
	}
	if c.at, err = parseTimestamp(c.timestamp); err != nil {
		return nil, err
	}
	switch age := s.opts.Clock.Now().Sub(c.at); {
	case age > timestampWindow:
		return nil, fmt.Errorf("the timestamp is %s behind our clock: an old request, or clocks that differ", age)
	case age < -timestampWindow:
		return nil, fmt.Errorf("the timestamp is %s ahead of our clock: the clocks differ", -age)
	}
	return c, nil
}

// verify says whether the signature is over this content.
func (c *claim) verify(content []byte) bool {
	return altershield.Verify(c.sign, c.timestamp, content, c.tokens...)
}

// single reads a header that must be there once: of two, it is anybody's guess
// which one another reader takes.
func single(h http.Header, key string) (string, error) {
	values := h.Values(key)
	switch {
	case len(values) > 1:
		return "", fmt.Errorf("header %s is there %d times", key, len(values))
	case len(values) == 0 || values[0] == "":
		return "", fmt.Errorf("header %s is missing", key)
	default:
		return values[0], nil
	}
}

// parseTimestamp reads Unix milliseconds: decimal digits, no sign, no space.
func parseTimestamp(value string) (time.Time, error) {
	millis, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strings.ContainsAny(value, "+-") {
		return time.Time{}, fmt.Errorf("header %s is not Unix milliseconds", altershield.HeaderTimestamp)
	}
	return time.UnixMilli(millis), nil
}

// signedHandler handles a request whose body was verified. It says whether the
// request is dealt with: if not, it may come again, byte for byte the same.
type signedHandler func(w http.ResponseWriter, r *http.Request, body []byte) (handled bool)

// signedBody lets through requests whose body is signed, each once. What takes
// longest comes last: the headers tell most of what is refused before the body
// is read, and only what is verified may wait for a slot. The context of the request
// ends when it has to be dealt with.
func (s *Server) signedBody(next signedHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.limits.record)
		defer cancel()
		r = r.WithContext(ctx)
		c, err := s.readClaim(r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		body, done, err := s.ReadBody(w, r)
		defer done()
		switch {
		case errors.Is(err, network.ErrTooLarge):
			s.refuseOversized(w, r)
			return
		case err != nil:
			s.reject(w, r, ResultIncomplete, "the body did not arrive: "+err.Error(), http.StatusBadRequest, "the body did not arrive", true)
			return
		case !c.verify(body):
			s.refuse(w, r, errWrongSign)
			return
		}
		end, fresh, err := s.replays.begin(ctx, c.sign, c.at.Add(timestampWindow))
		if err != nil {
			s.refuseBusy(w, r, "the same request is still being dealt with")
			return
		}
		if !fresh {
			s.refuse(w, r, errReplayed)
			return
		}
		handled := false
		defer func() { end(handled) }() // also without a slot, and after a panic
		s.admitted(w, r, func() { handled = next(w, r, body) })
	})
}

// signedQuery lets through requests whose query is signed. They only read, so
// that one may be repeated while its timestamp is accepted.
func (s *Server) signedQuery(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.readClaim(r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		// Strictly: what is left out of the query here would not be signed.
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			s.refuse(w, r, errors.New("the query is malformed"))
			return
		}
		if !c.verify(altershield.QueryContent(query)) {
			s.refuse(w, r, errWrongSign)
			return
		}
		s.admitted(w, r, func() { next(w, r) })
	})
}

// refuse is the one answer to whatever is wrong with the authentication. Only
// the log has the cause, but where it is the operator's: there is no token.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, cause error) {
	s.count(r, ResultRefused)
	s.refusals.Info("refused a request", "cause", cause.Error(), "path", r.URL.Path, "remote", r.RemoteAddr)
	switch {
	case !errors.Is(cause, errNoToken):
		writeJSON(w, http.StatusUnauthorized, altershield.CallbackResponse{Msg: "refused"})
	case r.URL.Path == altershield.CallbackPath:
		writeJSON(w, http.StatusUnauthorized, altershield.CallbackResponse{Msg: noToken})
	default:
		writeJSON(w, http.StatusUnauthorized, codeAnswer{http.StatusUnauthorized, noToken})
	}
}
