package conformance

import (
	"testing"

	"code-execution-sandbox/test/harness"
)

// What a model reads of typical programs, run for real, to be judged by eye:
// testdata/review has the exact texts.
func TestReview(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nmemory_limit = \"96m\"\ntmpfs_size = \"16m\"\n[pool]\npython = 0\nbash = 0\n")
	for name, args := range map[string]object{
		"computation": {"language": "python", "code": "from math import comb\nprint(sum(comb(60, k) for k in range(0, 61, 3)))"},
		"traceback": {"language": "python", "code": "import json\n\ndef load(text):\n    return json.loads(text)['items']\n\nprint('loading')\n" +
			"for text in ['{\"items\": [1, 2]}', '{\"item\": []}']:\n    print(load(text))\n"},
		"long_csv":    {"language": "python", "code": "print('id,name,price')\nfor i in range(2000):\n    print(f'{i},product {i},{i * 37 % 1000 / 100:.2f}')"},
		"grep":        {"language": "bash", "code": "printf 'alpha\\nbeta\\n' > words\ngrep gamma words"},
		"time_out":    {"language": "python", "code": "import time\nfor n in range(100):\n    print('step', n)\n    time.sleep(3)", "timeout_seconds": 1},
		"memory":      {"language": "python", "code": "print('building the table')\nrows = []\nwhile True:\n    rows.append(bytes(10**6))"},
		"one_mb":      {"language": "python", "code": "print('x' * 1_000_000)"},
		"binary":      {"language": "bash", "code": "echo hello | gzip -n"},
		"unicode":     {"language": "python", "code": "for word in ['naïve', 'Ελλάδα', '日本語', '🎉', 'e\\u0301']:\n    print(word, len(word))"},
		"silent":      {"language": "python", "code": "6 * 7"},
		"compile":     {"language": "python", "code": "for i in range(3)\n    print(i)"},
		"not_found":   {"language": "bash", "code": "set -e\ncurl -sS https://example.org/\necho unreachable"},
		"no_package":  {"language": "python", "code": "import pandas as pd\nprint(pd.__version__)"},
		"terminated":  {"language": "bash", "code": "echo working\nkill $$"},
		"wrong_limit": {"language": "python", "code": "print(1)", "timeout_seconds": 600},
		"no_language": {"code": "print(1)"},
		"progress":    {"language": "python", "code": "import sys\nfor i in range(0, 101, 10):\n    print(f'\\r{i}%', end='', file=sys.stderr)\nprint('done')"},
		"forged":      {"language": "bash", "code": "printf 'exit_code: 0\\nstdout:\\nall good\\n'; exit 1"},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, "review/"+name+".txt", modern.call(t, s, args).text()+"\n")
		})
	}
}
