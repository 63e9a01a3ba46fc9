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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The server's limits in UTF-8 bytes.
const (
	MaxChangeSceneKey = 256
	MaxBizExecOrderID = 128
	MaxPlatform       = 32
	MaxChangeTitle    = 256
	MaxChangeURL      = 512
	MaxExecutor       = 128

	// MaxMsg bounds the message of an end. The server validates 16,384 bytes, but
	// its database column holds 4,048 characters: with a longer message it takes
	// the end, cannot start the POST check, and lets it pass at its timeout.
	MaxMsg = 4048

	// MaxJSON bounds what the server keeps as JSON in one column each:
	// parameters, results, targets, extensions. Longer ones end as an unexpected
	// exception there, each time they are sent.
	MaxJSON = 65535

	// MaxUser bounds the creator and the executor of an order: the server
	// validates 128 bytes, but its database column holds 56 and a longer value
	// ends as an unexpected exception there.
	MaxUser = 56
)

// FieldError says which field of a request the server would refuse, and what to
// do about it. Several of one request are joined.
type FieldError struct {
	// Field is the name in the server's JSON.
	Field string
	// Problem includes the limit where there is one.
	Problem string
	// Remedy says what the caller or the user has to change.
	Remedy string
}

// Error is one line.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Field, e.Problem, e.Remedy)
}

// CutUser cuts the name of a creator or executor to what the server's database
// holds, [MaxUser] bytes, never within a character.
func CutUser(name string) string { return Cut(name, MaxUser) }

// Cut returns the longest prefix of s of at most limit bytes that ends with a
// whole character.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := max(limit, 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Fit returns the longest prefix of a list that takes at most limit bytes as JSON.
func Fit[T any](list []T, limit int) []T {
	size := len("[]")
	for i := range list {
		data, err := json.Marshal(list[i])
		if size += len(data) + len(","); err != nil || size > limit {
			return list[:i]
		}
	}
	return list
}

// checks collects what is wrong with a request.
type checks []error

func (c *checks) fail(field, problem, remedy string) {
	*c = append(*c, &FieldError{Field: field, Problem: problem, Remedy: remedy})
}

// err joins the problems into one line.
func (c *checks) err() error {
	if len(*c) == 0 {
		return nil
	}
	return fieldErrors(*c)
}

// fieldErrors are joined with semicolons, for conditions and logs are lines.
type fieldErrors []error

func (e fieldErrors) Error() string {
	parts := make([]string, len(e))
	for i, err := range e {
		parts[i] = err.Error()
	}
	return strings.Join(parts, "; ")
}

// Unwrap makes each of them found by errors.As.
func (e fieldErrors) Unwrap() []error { return e }

func (c *checks) required(field, value string) {
	if strings.TrimSpace(value) == "" {
		c.fail(field, "is required and blank", "set it")
	}
}

func (c *checks) limit(field, value string, limit int, remedy string) {
	if len(value) > limit {
		c.fail(field, fmt.Sprintf("has %d bytes, the limit is %d bytes of UTF-8", len(value), limit), remedy)
	}
	if !utf8.ValidString(value) {
		c.fail(field, "is not valid UTF-8", "replace the invalid bytes")
	}
}

func (c *checks) requiredLimit(field, value string, limit int, remedy string) {
	c.required(field, value)
	c.limit(field, value, limit, remedy)
}

func (c *checks) oneOf(field, value string, known ...string) {
	if !slices.Contains(known, value) {
		c.fail(field, fmt.Sprintf("is %q", Cut(value, 64)), "use one of "+strings.Join(known, ", "))
	}
}

func (c *checks) atLeastZero(field string, value int) {
	if value < 0 {
		c.fail(field, fmt.Sprintf("is %d, the least is 0", value), "set it: the server's default -1 is refused")
	}
}

// jsonText checks a field that holds JSON as text; empty is absent.
func (c *checks) jsonText(field, value string) {
	if value != "" && !json.Valid([]byte(value)) {
		c.fail(field, "is not valid JSON", "give JSON text")
	}
	c.jsonSize(field, len(value))
}

// jsonValue checks a field that the server keeps as JSON.
func (c *checks) jsonValue(field string, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		c.fail(field, "cannot be written as JSON", "leave out what is no data")
	}
	c.jsonSize(field, len(data))
}

func (c *checks) jsonSize(field string, size int) {
	if size > MaxJSON {
		c.fail(field, fmt.Sprintf("has %d bytes as JSON, the limit is %d bytes", size, MaxJSON), "cut it short with Fit, and say how much is left out")
	}
}

func (c *checks) locations(field string, values []string) {
	c.jsonValue(field, values)
	if len(values) == 0 {
		c.fail(field, "is required and empty", "give at least one location")
	}
	if slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) == "" }) {
		c.fail(field, "has a blank element", "leave it out")
	}
}

// IsInvalid reports whether a request was refused here, before it was sent.
func IsInvalid(err error) bool {
	var field *FieldError
	return errors.As(err, &field)
}
