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

// Package altershield is the client of AlterShield Server: its wire types, its
// signature, its calls and the classes of their errors. What the server expects
// and does is described in the protocol notes of the design; names in the types
// are the server's own.
//
// The package keeps no state of releases and decides nothing: callers store
// their intent before a call that must not be repeated, and read an error's
// class to know whether to repeat it.
//
//   - client.go: a call, from the request to the decoded answer; breaker.go leaves a server alone that fails
//   - errors.go: the classes of errors
//   - types.go, release.go: requests and answers; limits.go: what the server can store
//   - verdict.go, callback.go: verdicts, polled and delivered
//   - sign.go, token.go: the signature, and the tokens that make it
package altershield

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Headers that carry the signature, in both directions.
const (
	HeaderPlatform  = "X-AlterShield-Platform"
	HeaderTimestamp = "X-AlterShield-Timestamp"
	HeaderSign      = "X-AlterShield-Sign"
)

// Sign computes the protocol's signature over a timestamp (Unix milliseconds,
// as written in the header), the content and the token. The content of a POST
// is its body, of a GET what [QueryContent] makes of the query.
//
// The server upper-cases the base64 text, which makes it undecodable:
// signatures are compared as strings, see [Verify].
func Sign(timestampMillis string, content []byte, token string) string {
	h := sha256.New()
	h.Write([]byte(timestampMillis))
	h.Write(content)
	h.Write([]byte("&token="))
	h.Write([]byte(token))
	return strings.ToUpper(base64.URLEncoding.EncodeToString(h.Sum(nil)))
}

// Verify reports whether the signature was made with one of the tokens. It
// takes the same time whichever of them matches, and whether any does. An empty
// token verifies nothing.
func Verify(sign, timestampMillis string, content []byte, tokens ...string) bool {
	matched := 0
	for _, token := range tokens {
		if token == "" {
			continue
		}
		matched |= subtle.ConstantTimeCompare([]byte(Sign(timestampMillis, content, token)), []byte(sign))
	}
	return matched == 1
}

// Timestamp writes a time as the signature's header has it.
func Timestamp(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// QueryContent is the signed content of a GET: the query parameters as one JSON
// object, keys in natural order, of each parameter the first value.
func QueryContent(query url.Values) []byte {
	first := make(map[string]string, len(query))
	for key, values := range query {
		first[key] = ""
		if len(values) > 0 {
			first[key] = values[0]
		}
	}
	// Not json.Marshal: Java's serializers leave <, > and & as they are, and the
	// server compares with what its own makes.
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(first); err != nil {
		// A map of strings has no value that can't be encoded.
		panic(err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
