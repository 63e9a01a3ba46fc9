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
	"encoding/json"
	"fmt"
	"net/http"
)

// codeAnswer is the form of answers, except to callbacks.
type codeAnswer struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// writeJSON writes a whole answer at once.
func writeJSON(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		// The answers are structs of plain fields, which can always be encoded.
		panic(err)
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", fmt.Sprint(len(body)))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that is gone is not an error of the operator.
	_, _ = w.Write(body)
}
