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

package verify

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
)

func TestHealth(t *testing.T) {
	down := &altershield.Error{Action: altershield.ActionHeartbeat, Class: altershield.ClassRetry, Err: errors.New("connection refused")}
	broken := &altershield.Error{
		Action: altershield.ActionHeartbeat, Class: altershield.ClassRetry, Code: altershield.CodePermissionDenied, HTTPStatus: 200,
		Msg: "authentication request fail Invalid bound statement",
	}
	denied := &altershield.Error{
		Action: altershield.ActionHeartbeat, Class: altershield.ClassHuman, Code: altershield.CodePermissionDenied, HTTPStatus: 200,
		Msg: altershield.MsgPermissionDenied,
	}
	noToken := &altershield.Error{Action: altershield.ActionHeartbeat, Class: altershield.ClassHuman, Err: altershield.ErrNoToken}
	wrongPath := &altershield.Error{Action: altershield.ActionHeartbeat, Class: altershield.ClassGiveUp, HTTPStatus: 404}
	for name, test := range map[string]struct {
		heartbeats []error
		want       []string // the reason after each
	}{
		"works":                  {[]error{nil, nil}, []string{v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers}},
		"is down from the start": {[]error{down, down, down}, []string{"", v1alpha1.ReasonUnreachable, v1alpha1.ReasonUnreachable}},
		"is restarted": {
			[]error{nil, down, nil, down, nil},
			[]string{v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers},
		},
		"goes down and comes": {
			[]error{nil, down, down, nil},
			[]string{v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers, v1alpha1.ReasonUnreachable, v1alpha1.ReasonAnswers},
		},
		"comes up broken": {
			[]error{nil, down, broken, broken},
			[]string{v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswers, v1alpha1.ReasonAnswersWithErrors, v1alpha1.ReasonAnswersWithErrors},
		},
		"denies us":           {[]error{denied, denied}, []string{"", v1alpha1.ReasonPermissionDenied}},
		"has no token":        {[]error{noToken, noToken}, []string{"", v1alpha1.ReasonPermissionDenied}},
		"is not at that path": {[]error{wrongPath, wrongPath}, []string{"", v1alpha1.ReasonUnreachable}},
		"fails in different ways": {
			[]error{down, denied, broken}, []string{"", v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonAnswersWithErrors},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h Health
			var got []string
			for _, err := range test.heartbeats {
				h = h.After(err)
				got = append(got, h.Reason)
				if h.Healthy() != (h.Reason == v1alpha1.ReasonAnswers) || (h.Message == "") != (h.Reason == "") {
					t.Errorf("%+v", h)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}
