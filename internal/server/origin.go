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

package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Limits of a link, of the id of a parent order, and of its title, in bytes. The server takes links of 512 bytes.
const (
	maxLink        = 512
	maxParentID    = 128
	maxParentTitle = 256
)

// ParentOrder is the order of another system that a release is part of.
type ParentOrder struct {
	OrderID    string `json:"orderId"`
	OrderTitle string `json:"orderTitle"`
	OrderURL   string `json:"orderUrl"`
}

// OriginOf returns the link and the parent order of a release, which a user sets as annotations of the workload. Each
// problem is one line; the server gets no value with a problem.
func OriginOf(annotations map[string]string) (link string, parent *ParentOrder, problems []string) {
	problem := func(key, why string) { // without the value, which may have a password
		problems = append(problems, fmt.Sprintf("annotation %s is %s; AlterShield Server does not get it", key, why))
	}
	link = strings.TrimSpace(annotations[v1alpha1.ChangeURLAnnotation])
	if !isLink(link) {
		problem(v1alpha1.ChangeURLAnnotation, "no link: give an http or https URL without a password, of at most 512 bytes")
		link = ""
	}
	order := strings.TrimSpace(annotations[v1alpha1.ChangeOrderAnnotation])
	if order == "" {
		return link, nil, problems
	}
	parent = &ParentOrder{OrderID: order}
	var err error
	if strings.HasPrefix(order, "{") {
		parent.OrderID = ""
		err = json.Unmarshal([]byte(order), parent)
	}
	parent.OrderTitle, parent.OrderURL = cmp.Or(parent.OrderTitle, parent.OrderID), cmp.Or(parent.OrderURL, link)
	if err != nil || !isText(parent.OrderID, maxParentID) || !isText(parent.OrderTitle, maxParentTitle) || !isLink(parent.OrderURL) {
		problem(v1alpha1.ChangeOrderAnnotation, "no order: give an id of at most 128 bytes, or a JSON object of texts with orderId, "+
			"orderTitle (256 bytes) and orderUrl (a link)")
		parent = nil
	}
	return link, parent, problems
}

// isLink reports whether a text is a link that a user can open, or is empty.
func isLink(text string) bool {
	if text == "" {
		return true
	}
	u, err := url.Parse(text)
	return err == nil && isText(text, maxLink) && !strings.ContainsFunc(text, unicode.IsSpace) &&
		u.Hostname() != "" && u.User == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// isText reports whether a text has one printable line, of at most a number of bytes.
func isText(text string, most int) bool {
	return strings.TrimSpace(text) != "" && len(text) <= most && utf8.ValidString(text) && wording.Printable(text) == text
}
