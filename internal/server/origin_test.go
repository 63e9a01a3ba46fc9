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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestOriginOf(t *testing.T) {
	const link = "https://ci.example.com/run/7?x=1#log"
	const noOrder = "is no order: give an id of at most 128 bytes, or"
	long := "https://ci.example.com/" + strings.Repeat("a", 488) + "é" // 513 bytes
	for name, test := range map[string]struct {
		url, order string
		link       string
		parent     *ParentOrder
		problems   []string // a part of each
	}{
		"nothing":           {},
		"blank":             {url: "  ", order: "\n"},
		"a link":            {url: " " + link + " ", link: link},
		"the longest link":  {url: long[:511], link: long[:511]},
		"too long":          {url: long, problems: []string{"is no link: give an http or https URL"}},
		"another scheme":    {url: "javascript:alert(1)", problems: []string{`change-url is no link`}},
		"no host":           {url: "https://:443/", problems: []string{"is no link"}},
		"relative":          {url: "/run/7", problems: []string{"is no link"}},
		"with a password":   {url: "https://jane:secret@ci.example.com/", problems: []string{"without a password"}},
		"with a space":      {url: "https://ci.example.com/a b", problems: []string{"is no link"}},
		"with an escape":    {url: "https://ci.example.com/\x1b[2J", problems: []string{"is no link"}},
		"an id":             {order: "CHG-7", parent: &ParentOrder{"CHG-7", "CHG-7", ""}},
		"an id with a link": {url: link, order: "CHG-7", link: link, parent: &ParentOrder{"CHG-7", "CHG-7", link}},
		"an id too long":    {order: strings.Repeat("x", 129), problems: []string{noOrder}},
		"two lines":         {order: "CHG-7\nCHG-8", problems: []string{noOrder}},
		"an object": {order: `{"orderId":"7","orderTitle":"Spring","orderUrl":"http://chg/7","more":1}`,
			parent: &ParentOrder{"7", "Spring", "http://chg/7"}},
		"an object with an id only": {url: link, order: `{"orderId":"7"}`, link: link, parent: &ParentOrder{"7", "7", link}},
		"an object without an id":   {url: link, order: `{"orderTitle":"Spring"}`, link: link, problems: []string{noOrder}},
		"not an object":             {order: `{"orderId":7}`, problems: []string{noOrder}},
		"cut off":                   {order: `{"orderId":"7"`, problems: []string{noOrder}},
		"a title too long": {order: `{"orderId":"7","orderTitle":"` + strings.Repeat("x", 257) + `"}`,
			problems: []string{noOrder}},
		"an orderUrl of another scheme": {order: `{"orderId":"7","orderUrl":"ftp://chg/7"}`,
			problems: []string{`change-order is no order: `}},
		"both wrong": {url: "x", order: "{", problems: []string{"change-url", "change-order"}},
	} {
		t.Run(name, func(t *testing.T) {
			link, parent, problems := OriginOf(map[string]string{v1alpha1.ChangeURLAnnotation: test.url, v1alpha1.ChangeOrderAnnotation: test.order})
			if link != test.link {
				t.Errorf("link %q, want %q", link, test.link)
			}
			if diff := cmp.Diff(test.parent, parent); diff != "" {
				t.Errorf("parent -want +got:\n%s", diff)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("problems %q, want %q", problems, test.problems)
			}
			for i, want := range test.problems {
				if !strings.Contains(problems[i], want) || !strings.HasSuffix(problems[i], "; AlterShield Server does not get it") {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
		})
	}
}
