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
)

// Class is what to do after a call that failed.
type Class string

const (
	// ClassRetry means that the next attempt may succeed. Nothing reached the server, it
	// answered nonsense, or it is busy.
	ClassRetry Class = "Retry"
	// ClassHuman means that a human has to repair the registration or the token
	// first.
	ClassHuman Class = "Human"
	// ClassGiveUp means that the same request is refused again. Two refusals mean
	// something else in some states, see [CodeDuplicate] and [CodeNotSupported].
	ClassGiveUp Class = "GiveUp"
)

// Errors that an [Error] is, where nothing was sent.
var (
	// ErrBreakerOpen: the server failed repeatedly and is left alone for a while;
	// nothing was sent, and nothing is known of the server now.
	ErrBreakerOpen = errors.New("the circuit breaker is open")
	// ErrJustFailed: another call failed a moment ago, which counts for this one, too;
	// nothing was sent.
	ErrJustFailed = errors.New("another call has just failed")
	// ErrThrottled: our own limits of calls are reached; nothing was sent.
	ErrThrottled = errors.New("throttled")
	// ErrNoToken: there is no token to sign with; nothing was sent.
	ErrNoToken = errors.New("no usable token")
)

// Error is a call that failed. Its text is one line of at most 2*maxMessage bytes,
// names the action, the result code and the server's message, and never holds a token.
type Error struct {
	Action Action
	Class  Class
	// Code is the server's result code on one short line, empty when it gave none.
	Code ResultCode
	// HTTPStatus is 0 when there was no answer.
	HTTPStatus int
	// Msg is the server's message, cut to one short line: of several KB of SQL the
	// cause only.
	Msg string
	// RetryAfter is when to try again at the earliest; 0 leaves it to the caller.
	RetryAfter time.Duration
	// Ambiguous: the server may have done what was asked, as far as we know.
	Ambiguous bool
	// Err is the cause, nil for an answer of the server.
	Err error
}

// Error is one line.
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

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf is the result code of an error of this package, empty where the server gave none.
func CodeOf(err error) ResultCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsNoCheck reports that no check is configured for this step (151, 152): there
// is nothing to wait for.
func IsNoCheck(err error) bool {
	code := CodeOf(err)
	return code == CodeNoPreCheck || code == CodeNoPostCheck
}

// IsAmbiguous reports that the server may have done what was asked.
func IsAmbiguous(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Ambiguous
}

// ClassOf is the class of an error of this package, empty for nil. Any other
// error, a canceled context for one, is worth a retry.
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

// classOfRefusal classifies a refusal of the application by its code and its whole
// message.
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

// permanent says of the message of an unexpected end (901) that the database
// refused a value: one that is too long for its column, say, or missing.
func permanent(msg string) bool {
	cause := strings.ToLower(causeOf(msg))
	return slices.ContainsFunc([]string{
		"data truncation", "data too long for column", "incorrect string value", "cannot be null", "doesn't have a default value",
	}, func(words string) bool { return strings.Contains(cause, words) })
}

// causeOf leaves out what comes with the cause where the server's database fails:
// names of files, and all of the SQL.
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

// classOfCode classifies a refusal of the application.
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
		// A code we don't know: the deadlines bound how long it is repeated.
		return ClassRetry
	}
}

// ambiguousRefusal reports whether a refusal may follow a request that was carried
// out. Only an unexpected end on the server leaves that open; what it could not
// authenticate, for whatever reason, it did not carry out.
func ambiguousRefusal(code ResultCode, class Class) bool {
	switch code {
	case CodeAccessLimit, CodePermissionDenied:
		return false
	default:
		return class == ClassRetry
	}
}

// neverSent reports a transport error from before there was a connection.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns)
}
