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

package altershield

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is the HTTP answer to a call.
type answer struct {
	status     int
	retryAfter time.Duration
	redirect   bool
	body       []byte
}

func retryAfterHeader(value string) time.Duration {
	seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// envelope is the form of every answer of the application.
type envelope struct {
	Success    *bool           `json:"success"`
	ResultCode ResultCode      `json:"resultCode"`
	Msg        string          `json:"msg"`
	Domain     json.RawMessage `json:"domain"`
}

// errNotApplication marks an answer that did not come from the application.
var errNotApplication = errors.New("not an answer of the application")

// isAnswer reports whether a decoded answer came from the application.
func isAnswer(err error) bool { return !errors.Is(err, errNotApplication) }

// decode reads an answer. An answer without an envelope is a transport error, whatever
// sent it. There are two exceptions: HTTP 400, and another 4xx in JSON, mean that the
// application could not read the request.
func decode[T any](action Action, a *answer, tokens []string, check func(*T) error) (*T, error) {
	foreign := func(format string, args ...any) error {
		return &Error{
			Action: action, Class: ClassRetry, HTTPStatus: a.status, RetryAfter: a.retryAfter, Ambiguous: true,
			Err: fmt.Errorf("%w: %s", errNotApplication, fmt.Sprintf(format, args...)),
		}
	}
	isObject := json.Valid(a.body) && bytes.HasPrefix(bytes.TrimSpace(a.body), []byte("{"))
	switch {
	case a.status == http.StatusBadRequest:
		return nil, &Error{Action: action, Class: ClassGiveUp, HTTPStatus: a.status, Msg: excerpt(a.body, tokens)}
	case a.status == http.StatusRequestTimeout, a.status == http.StatusTooEarly, a.status == http.StatusTooManyRequests:
		return nil, foreign("it asks to try again later")
	case a.status > 400 && a.status < 500 && isObject:
		return nil, &Error{Action: action, Class: ClassGiveUp, HTTPStatus: a.status, Msg: excerpt(a.body, tokens)}
	case a.redirect:
		return nil, foreign("a redirect, which is not followed")
	case a.status < 200 || a.status > 299:
		return nil, foreign("%s", http.StatusText(a.status))
	case len(a.body) > maxAnswer:
		return nil, foreign("more than %d bytes", maxAnswer)
	case !isObject:
		return nil, foreign("no JSON object (%d bytes)", len(a.body))
	}
	var e envelope
	if err := json.Unmarshal(a.body, &e); err != nil {
		return nil, foreign("%v", describeJSON(err))
	}
	if e.Success == nil {
		return nil, foreign("no field success")
	}
	if !*e.Success {
		class := classOfRefusal(e.ResultCode, e.Msg)
		return nil, &Error{
			Action: action, Class: class, Code: ResultCode(Cut(excerpt([]byte(e.ResultCode), tokens), maxCode)), HTTPStatus: a.status,
			Msg: excerpt([]byte(causeOf(e.Msg)), tokens), Ambiguous: ambiguousRefusal(e.ResultCode, class),
		}
	}
	domain := new(T)
	if len(e.Domain) > 0 {
		if err := json.Unmarshal(e.Domain, domain); err != nil {
			return nil, foreign("domain: %v", describeJSON(err))
		}
	}
	if check != nil {
		if err := check(domain); err != nil {
			return nil, foreign("%v", err)
		}
	}
	return domain, nil
}

// excerpt makes text of the server fit for an error: one short line. Tokens that the
// text echoes are replaced.
func excerpt(text []byte, tokens []string) string {
	s := string(text)
	for _, token := range tokens {
		if token != "" {
			s = strings.ReplaceAll(s, token, "[token]")
		}
	}
	return Cut(line(Cut(s, 4*maxMessage)), maxMessage)
}

func hasNodeID(r *NodeResult) error {
	// A node without an id can be neither finished nor polled. An answer without an id is
	// good only if the server skips the check.
	if r.NodeID == "" && !r.SkipCheck {
		return errors.New("the answer has no nodeId")
	}
	if len(r.NodeID) > maxNodeID {
		return fmt.Errorf("nodeId in the answer has more than %d bytes", maxNodeID)
	}
	return nil
}
