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

package network

import "testing"

func TestSourceOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80":              "192.0.2.1",
		"[::ffff:192.0.2.1]:80":     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[fe80::1%eth0]:80":         "fe80::",
		"pipe":                      "invalid IP",
		"name:80":                   "invalid IP",
		"":                          "invalid IP",
	} {
		if got := SourceOf(remote).String(); got != want {
			t.Errorf("SourceOf(%q) = %s, want %s", remote, got, want)
		}
	}
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80":              "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2:3:4:5:6",
		"[fe80::1%eth0]:80":         "fe80::1",
		"pipe":                      "invalid IP",
	} {
		if got := AddressOf(remote).String(); got != want {
			t.Errorf("AddressOf(%q) = %s, want %s", remote, got, want)
		}
	}
}
