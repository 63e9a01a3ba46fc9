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

package monitoring

import (
	"encoding/json"
	"io"
	"log"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fault is a bad answer. It may wait until ended is closed, or the client leaves.
type Fault func(w http.ResponseWriter, r *http.Request, ended <-chan struct{})

// quiet is the log of servers whose clients leave and whose handlers panic on purpose.
var quiet = log.New(io.Discard, "", 0)

// answer returns a fault that answers with a status, a content type and a body.
func answer(status int, contentType, body string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Garbage answers 200 with bytes that are no JSON, but are said to be.
func Garbage() Fault {
	return answer(http.StatusOK, "application/json", "\x00\x1b[2J\xff\xfe{\"status\":\"succ\x7f")
}

// HTML answers with a page, as a proxy does that wants a login.
func HTML(status int) Fault {
	return answer(status, "text/html; charset=utf-8", "<!DOCTYPE html>\n<html><title>Sign in</title><body><form/></body></html>\n")
}

// Refused answers as Prometheus answers a query that it cannot carry out, such as (503, "timeout") or (422, "execution").
func Refused(status int, errorType, message string) Fault {
	body, err := json.Marshal(map[string]string{"status": "error", "errorType": errorType, "error": message})
	if err != nil {
		panic(err) // strings have no such error
	}
	return answer(status, "application/json", string(body))
}

// Status answers with a status and, if it is positive, with Retry-After, in whole seconds.
func Status(status int, retryAfter time.Duration) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
		}
		http.Error(w, http.StatusText(status), status)
	}
}

// Redirect redirects to a URL by 307, which keeps method and body.
func Redirect(to string) Fault {
	return func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}
}

// Large answers 200 with a valid result of a query that has at least n bytes, without a length in advance.
func Large(n int) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "application/json")
		series := `{"metric":{"pod":"` + strings.Repeat("x", 1000) + `"},"value":[1,"1"]}`
		if _, err := io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[`+series); err != nil {
			return
		}
		for sent := len(series); sent < n; sent += len(series) + 1 {
			if _, err := io.WriteString(w, ","+series); err != nil {
				return // the client has left
			}
		}
		_, _ = io.WriteString(w, "]}}")
	}
}

// Hang answers nothing.
func Hang() Fault {
	return func(_ http.ResponseWriter, r *http.Request, ended <-chan struct{}) {
		hang(r, ended)
		panic(http.ErrAbortHandler)
	}
}

// HangInBody begins to answer, and does not go on.
func HangInBody() Fault {
	return func(w http.ResponseWriter, r *http.Request, ended <-chan struct{}) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"success","data":`)
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		hang(r, ended)
		panic(http.ErrAbortHandler)
	}
}

// Truncated ends the connection within the body.
func Truncated() Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[`)
	}
}

// Reset ends the connection without an answer.
func Reset() Fault {
	return func(http.ResponseWriter, *http.Request, <-chan struct{}) { panic(http.ErrAbortHandler) }
}

func hang(r *http.Request, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-r.Context().Done():
	}
}
