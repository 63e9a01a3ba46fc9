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

// timestampWindow is how far the timestamp of a request may be from the operator's clock, in
// both directions. The protocol itself has no expiry.
const timestampWindow = 5 * time.Minute

// Causes of a refusal. Only the log has them; the client does not get them.
var (
	errWrongSign = errors.New("the signature is wrong: another token, or altered content")
	errNoToken   = errors.New("no token is configured")
	errReplayed  = errors.New("the signature was used before, or expired while the request was read")
)

// noToken is the answer to every signed request of an operator without a token. It is no
// secret, and a client cannot change it by trying again.
const noToken = "this address serves signed requests only, and the operator has no token to verify them: set --altershield-token-file"

// claim has the values of the headers that belong to the signature of a request.
type claim struct {
	timestamp string
	at        time.Time
	sign      string
	tokens    []string
}

// readClaim reads the headers. It fails if no content can make the signature acceptable. So
// the content of such a request is neither read nor hashed. Its errors quote nothing of the
// request.
func (s *Server) readClaim(r *http.Request) (*claim, error) {
	if s.opts.Tokens == nil {
		return nil, errNoToken
	}
	tokens, err := s.opts.Tokens.Tokens()
	if err != nil {
		return nil, err
	}
	// The operator does not read the platform, and the signature does not cover it. But a
	// request without it is not of the protocol.
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

// verify reports whether the signature is of this content.
func (c *claim) verify(content []byte) bool {
	return altershield.Verify(c.sign, c.timestamp, content, c.tokens...)
}

// single reads a header that must be there exactly once. Of two headers, another reader might
// take the other one.
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

// signedHandler handles a request whose body was verified. It reports whether the request is
// done. If not, the same request may come again, byte for byte.
type signedHandler func(w http.ResponseWriter, r *http.Request, body []byte) (handled bool)

// signedBody lets through requests whose body is signed, each request once. The slowest steps
// come last: most bad requests are refused by their headers, without reading the body, and only
// verified requests wait for a slot. The context of the request ends at its deadline.
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
			s.refuseBusy(w, r, "the same request is still being handled")
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

// signedQuery lets through requests whose query is signed. They only read, so a request may be
// repeated while its timestamp is accepted.
func (s *Server) signedQuery(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.readClaim(r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		// Strict: a part of the query that is left out here would not be verified.
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

// refuse answers a request with a wrong authentication. The answer is always the same, and only
// the log has the cause. An operator without a token says so in the answer.
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
