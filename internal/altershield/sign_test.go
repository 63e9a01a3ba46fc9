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
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	vectorTimestamp = "1700000000123"
	vectorSign      = "OCSKWAFLHE3AJKMCN5G9FCCOH0_FCMXVW7FIHTT7CFG="
)

func TestSignVectors(t *testing.T) {
	if got := Sign(vectorTimestamp, []byte(`{"a":1}`), "tok"); got != vectorSign {
		t.Errorf("Sign() = %q, want %q", got, vectorSign)
	}
}

func TestVerify(t *testing.T) {
	tests := map[string]struct {
		sign, timestamp, content string
		tokens                   []string
		want                     bool
	}{
		"right":                      {vectorSign, vectorTimestamp, `{"a":1}`, []string{"tok"}, true},
		"second token of a rotation": {vectorSign, vectorTimestamp, `{"a":1}`, []string{"new", "tok"}, true},
		"the same token twice":       {vectorSign, vectorTimestamp, `{"a":1}`, []string{"tok", "tok"}, true},
		"other token":                {vectorSign, vectorTimestamp, `{"a":1}`, []string{"other"}, false},
		"other timestamp":            {vectorSign, "1700000000124", `{"a":1}`, []string{"tok"}, false},
		"altered content":            {vectorSign, vectorTimestamp, `{"a":2}`, []string{"tok"}, false},
		"lower case":                 {"ocskwaflhe3ajkmcn5g9fccoh0_fcmxvw7fihtt7cfg=", vectorTimestamp, `{"a":1}`, []string{"tok"}, false},
		"no signature":               {"", vectorTimestamp, `{"a":1}`, []string{"tok"}, false},
		"no token":                   {vectorSign, vectorTimestamp, `{"a":1}`, nil, false},
		"empty token verifies nothing": {
			Sign(vectorTimestamp, []byte("x"), ""), vectorTimestamp, "x", []string{""}, false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Verify(tc.sign, tc.timestamp, []byte(tc.content), tc.tokens...); got != tc.want {
				t.Errorf("Verify() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestQueryContent(t *testing.T) {
	tests := map[string]struct {
		query string
		want  string
	}{
		"none":          {"", `{}`},
		"natural order": {"b=2&a=1&B=3", `{"B":"3","a":"1","b":"2"}`},
		"first value":   {"a=1&a=2", `{"a":"1"}`},
		"not escaped":   {"a=%3C%26%3E", `{"a":"<&>"}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			query, err := url.ParseQuery(tc.query)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(QueryContent(query))); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
		})
	}
}
