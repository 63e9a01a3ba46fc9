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
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/internal/breaker"
)

// Class is how to react to a call that failed.
type Class string

const (
	// ClassRetry means that the next attempt may succeed: the request did not reach the
	// server, or the server is busy or gave an answer that is none.
	ClassRetry Class = "Retry"
	// ClassHuman means that a human has to repair the registration or the token
	// first.
	ClassHuman Class = "Human"
	// ClassGiveUp means that the server would refuse the same request again. In some states
	// two refusals mean something else, see [CodeDuplicate] and [CodeNotSupported].
	ClassGiveUp Class = "GiveUp"
)

// Errors that an [Error] wraps if nothing was sent.
var (
	// ErrBreakerOpen: the server failed repeatedly, and the operator sends nothing for a
	// while. Whether the server works now is not known.
	ErrBreakerOpen = breaker.ErrOpen
	// ErrJustFailed: another call failed a moment ago, and its failure counts for this
	// call, too.
	ErrJustFailed = breaker.ErrJustFailed
	// ErrThrottled: the operator's own limits of calls are reached.
	ErrThrottled = errors.New("throttled")
	// ErrNoToken: there is no token to sign with.
	ErrNoToken = errors.New("no usable token")
)

// Error describes a call that failed. Its text is one line of at most 2*maxMessage bytes. The
// text names the action, the result code and the server's message, and never holds a token.
type Error struct {
	Action Action
	Class  Class
	// Code is the result code of the server on one short line, or empty.
	Code ResultCode
	// HTTPStatus is 0 when there was no answer.
	HTTPStatus int
	// Msg is the server's message, cut to one short line. Of a message with several KB of
	// SQL it holds only the cause.
	Msg string
	// RetryAfter is the shortest wait until the next try; 0 leaves it to the caller.
	RetryAfter time.Duration
	// Ambiguous: the server may have carried out the request.
	Ambiguous bool
	// Err is the cause, nil for an answer of the server.
	Err error
}

// Error returns the text, one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "AlterShield Server: %s:", e.Action)
	if e.HTTPStatus != 0 && e.Code == "" {
		fmt.Fprintf(&b, " HTTP %d", e.HTTPStatus)
	}
	if e.Code != "" {
		fmt.Fprintf(&b, " result code %s", e.Code)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, " %s", Cut(line(e.Err.Error()), maxMessage))
	}
	if e.Msg != "" {
		fmt.Fprintf(&b, " %q", e.Msg)
	}
	return Cut(b.String(), 2*maxMessage) // quoting makes a message longer
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the result code of an error of this package, empty if the server gave none.
func CodeOf(err error) ResultCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsNoCheck reports whether the server has no check for this step (151, 152), so that there
// is nothing to wait for.
func IsNoCheck(err error) bool {
	code := CodeOf(err)
	return code == CodeNoPreCheck || code == CodeNoPostCheck
}

// IsAmbiguous reports whether the server may have carried out the request.
func IsAmbiguous(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Ambiguous
}

// ClassOf returns the class of an error of this package, empty for nil. Any other error, such
// as a canceled context, has the class ClassRetry.
func ClassOf(err error) Class {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Class
	default:
		return ClassRetry
	}
}

// classOfRefusal classifies a refusal of the application by its code and by its whole message.
func classOfRefusal(code ResultCode, msg string) Class {
	switch {
	case code == CodePermissionDenied && strings.TrimSpace(msg) != MsgPermissionDenied:
		return ClassRetry
	case code == CodeUnexpected && permanent(msg):
		return ClassGiveUp
	default:
		return classOfCode(code)
	}
}

// permanent reports whether the message of an unexpected end (901) says that the database
// refused a value, for example because the value is missing or too long for its column.
func permanent(msg string) bool {
	cause := strings.ToLower(causeOf(msg))
	return slices.ContainsFunc([]string{
		"data truncation", "data too long for column", "incorrect string value", "cannot be null", "doesn't have a default value",
	}, func(words string) bool { return strings.Contains(cause, words) })
}

// causeOf returns the cause from a message about a failure of the server's database, without
// names of files and without the SQL.
func causeOf(msg string) string {
	const mark = "### Cause:"
	_, cause, found := strings.Cut(msg, mark)
	if !found {
		return msg
	}
	said, _, _ := strings.Cut(msg, "###")
	cause, _, _ = strings.Cut(strings.TrimSpace(cause), "\n")
	return strings.TrimSpace(strings.TrimSpace(said) + " " + strings.TrimSpace(cause))
}

// classOfCode classifies a refusal of the application by its code.
func classOfCode(code ResultCode) Class {
	switch code {
	case CodePermissionDenied:
		return ClassHuman
	case CodeAccessLimit, CodeUnexpected, CodeSystem, CodeSPINotFound, CodeSPIFailed:
		return ClassRetry
	case CodeIllegalArgument, CodeNotSupported, CodeNotFound, CodeDuplicate,
		CodePreCheckFailed, CodePostCheckFailed, CodeNoPreCheck, CodeNoPostCheck, "311", "312", "313":
		return ClassGiveUp
	default:
		// An unknown code: the deadlines bound how long the request is repeated.
		return ClassRetry
	}
}

// ambiguousRefusal reports whether the server may have carried out a request that it refused.
// Only an unexpected end on the server leaves that open. The server never carries out a request
// that it could not authenticate, whatever the reason.
func ambiguousRefusal(code ResultCode, class Class) bool {
	switch code {
	case CodeAccessLimit, CodePermissionDenied:
		return false
	default:
		return class == ClassRetry
	}
}

// neverSent reports whether a transport error occurred while there was no connection yet.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns)
}
