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

// Package altershield is the client of AlterShield Server. It has the types, the signature
// and the calls of the protocol, and the classes of their errors. The protocol notes of the
// design describe the server. Names in the types are the names of the server.
//
// The package keeps no state of releases and decides nothing. A caller stores its intent
// ahead of a call that must not be repeated, and reads the class of an error to know whether
// to repeat a call.
//
//   - client.go: a call, from the request to the decoded answer; breaker.go stops calls to a server that fails
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

// Sign computes the signature of the protocol over the timestamp of the header (Unix
// milliseconds), the content and the token. The content of a POST is its body. The content
// of a GET is its query, see [QueryContent].
//
// The signature is upper-case base64 text, which cannot be decoded. So signatures are compared
// as strings, see [Verify].
func Sign(timestampMillis string, content []byte, token string) string {
	h := sha256.New()
	h.Write([]byte(timestampMillis))
	h.Write(content)
	h.Write([]byte("&token="))
	h.Write([]byte(token))
	return strings.ToUpper(base64.URLEncoding.EncodeToString(h.Sum(nil)))
}

// Verify reports whether the signature was made with one of the tokens. Its duration does not
// depend on which token matches, or whether one does. An empty token never matches.
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

// Timestamp formats a time for the header of the signature.
func Timestamp(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// QueryContent returns the signed content of a GET: one JSON object with the first value of
// each query parameter, and with its keys in natural order.
func QueryContent(query url.Values) []byte {
	first := make(map[string]string, len(query))
	for key, values := range query {
		first[key] = ""
		if len(values) > 0 {
			first[key] = values[0]
		}
	}
	// Not json.Marshal: the server compares with the text of a Java serializer, which does
	// not escape <, > and &.
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(first); err != nil {
		// A map of strings can always be encoded.
		panic(err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
