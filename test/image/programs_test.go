package image

import (
	"regexp"
	"strings"
	"testing"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

var programs = []program{
	{of: "numpy", language: sandbox.Python, stdout: "True True 4\n", code: `
import numpy as np
a = np.random.default_rng(0).random((300, 300))
# OpenBLAS against plain loops: old versions compute wrong results on new processors.
print(np.allclose(a @ a, np.einsum("ij,jk->ik", a, a, optimize=False)), np.allclose(a @ np.linalg.inv(a), np.eye(300)), np.linalg.matrix_rank(a[:4]))`},
	{of: "scipy", language: sandbox.Python, stdout: "[2. 1.] 0.3333 True 2\n", code: `
import numpy as np
from scipy import fft, integrate, optimize, sparse, stats
x = np.linspace(0, 5, 50)
fit, _ = optimize.curve_fit(lambda x, a, b: a * x + b, x, 2 * x + 1)
print(fit.round(6), round(integrate.quad(lambda x: x * x, 0, 1)[0], 4), stats.ttest_ind(x, x + 9).pvalue < .01, sparse.linalg.matrix_power(sparse.csr_array([[0, 1], [1, 0]]), 2).nnz)
fft.fft(x)`},
	{of: "pandas", language: sandbox.Python, stdout: "a 3\nb 7\n2024-01-01 01:00:00+01:00 2\n", code: `
import io, pandas as pd
d = pd.read_csv(io.StringIO("k,v,t\na,1,2024-01-01\na,2,2024-01-02\nb,7,2024-02-01\n"), parse_dates=["t"])
for k, v in d.groupby("k").v.sum().items(): print(k, v)
print(d.t.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")[0], len(d.set_index("t").resample("MS").sum()))`},
	{of: "tabulate", language: sandbox.Python, stdout: "|   a |\n|----:|\n|   1 |\n[4]\n", code: `
import io, pandas as pd
print(pd.DataFrame({"a": [1]}).to_markdown(index=False))
print(pd.read_html(io.StringIO("<table><tr><th>x</th></tr><tr><td>4</td></tr></table>"))[0].x.tolist())`},
	{of: "matplotlib", language: sandbox.Python, stdout: "agg (640, 480) True True\n", code: `
import matplotlib, matplotlib.pyplot as plt, os
plt.plot([1, 3, 2], label="日本語 한국어 中文 é")
plt.title("温度"); plt.xlabel("$x^2$"); plt.legend(); plt.show()
for kind in "png", "svg", "pdf": plt.savefig("/tmp/a." + kind)
from PIL import Image
print(matplotlib.get_backend(), Image.open("/tmp/a.png").size, os.path.getsize("/tmp/a.pdf") > 5000, "<svg" in open("/tmp/a.svg").read())`},
	{of: "seaborn", language: sandbox.Python, stdout: "True\n", code: `
import os, pandas as pd, seaborn as sns
d = pd.DataFrame({"x": [1, 2, 3, 4] * 5, "y": range(20), "k": list("ab") * 10})
sns.set_theme()
sns.scatterplot(d, x="x", y="y", hue="k").figure.savefig("/tmp/a.png")
sns.heatmap(d[["x", "y"]].corr(), annot=True).figure.savefig("/tmp/b.png")
print(os.path.getsize("/tmp/b.png") > 5000)`},
	{of: "sympy gmpy2", language: sandbox.Python, stdout: "x**3/3 [-2, 2] gmpy 93326215443944152681\n", code: `
from sympy import *
from sympy.external.gmpy import GROUND_TYPES
x = symbols("x")
print(integrate(x**2, x), solve(x**2 - 4, x), GROUND_TYPES.rstrip("2"), str(factorial(100))[:20])`},
	{of: "scikit-learn", language: sandbox.Python, stdout: "True 2\n", code: `
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.cluster import KMeans
x, y = load_iris(return_X_y=True)
model = make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0, n_jobs=2))
print(cross_val_score(model, x, y, n_jobs=-1).mean() > .9, len(set(KMeans(2, n_init=2, random_state=0).fit_predict(x))))`},
	{of: "statsmodels", language: sandbox.Python, stdout: "True True\n", code: `
import numpy as np, statsmodels.api as sm, statsmodels.formula.api as smf, pandas as pd
x = np.arange(30.); y = 3 * x + np.sin(x)
print("R-squared" in str(sm.OLS(y, sm.add_constant(x)).fit().summary()), smf.ols("y ~ x", pd.DataFrame({"x": x, "y": y})).fit().rsquared > .99)`},
	{of: "networkx", language: sandbox.Python, stdout: "['a', 'b', 'd'] 4\n", code: `
import networkx as nx
g = nx.DiGraph([("a", "b"), ("b", "d"), ("a", "c"), ("c", "b")])
print(nx.shortest_path(g, "a", "d"), len(nx.pagerank(g)))`},
	{of: "pillow WenQuanYi DejaVu Liberation", language: sandbox.Python, stdout: "JPEG WEBP PNG GIF TIFF True\n", code: `
from PIL import Image, ImageDraw, ImageFont, ImageFilter
image = Image.new("RGB", (200, 60), "white")
draw = ImageDraw.Draw(image)
for y, name in enumerate(("wqy-microhei.ttc", "DejaVuSans.ttf", "LiberationSans-Regular.ttf")):
    draw.text((5, 20 * y), "日本 é", font=ImageFont.truetype(name, 16), fill="black")
image = image.filter(ImageFilter.BLUR).resize((100, 30))
kinds = "JPEG WEBP PNG GIF TIFF".split()
for kind in kinds:
    image.save("/tmp/a." + kind.lower(), kind)
print(*(Image.open("/tmp/a." + kind.lower()).format for kind in kinds), image.getextrema()[0][0] < 255)`},
	{of: "lxml beautifulsoup4 html5lib", language: sandbox.Python, stdout: "2 Hi 2 http://x/ None\n", code: `
from lxml import etree
from bs4 import BeautifulSoup
doc = etree.fromstring("<r><a i='1'/><a i='2'>Hi</a></r>")
page = "<p>one<p>two<a href=http://x/>l</a>"
print(doc.xpath("count(//a)").__int__(), doc.xpath("//a[2]")[0].text,
      len(BeautifulSoup(page, "html5lib").find_all("p")), BeautifulSoup(page, "lxml").a["href"], BeautifulSoup(page, "html.parser").h1)`},
	{of: "openpyxl xlsxwriter", language: sandbox.Python, stdout: "6 [1, 2]\n", code: `
import openpyxl, pandas as pd, xlsxwriter
with xlsxwriter.Workbook("/tmp/a.xlsx") as book:
    sheet = book.add_worksheet("s"); sheet.write_row(0, 0, [1, 2, 3]); sheet.write_formula(1, 0, "=SUM(A1:C1)", None, 6)
print(openpyxl.load_workbook("/tmp/a.xlsx", data_only=True)["s"]["A2"].value, end=" ")
pd.DataFrame({"a": [1, 2]}).to_excel("/tmp/b.xlsx", index=False)
print(pd.read_excel("/tmp/b.xlsx").a.tolist())`},
	{of: "python-docx", language: sandbox.Python, stdout: "Title\nbody\n", code: `
import docx
d = docx.Document(); d.add_heading("Title"); d.add_paragraph("body"); d.add_table(1, 2); d.save("/tmp/a.docx")
for p in docx.Document("/tmp/a.docx").paragraphs: print(p.text)`},
	{of: "reportlab pypdf", language: sandbox.Python, stdout: "1 Hello PDF\n", code: `
from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen import canvas
c = canvas.Canvas("/tmp/a.pdf"); c.drawString(100, 700, "Hello PDF"); c.save()
w = PdfWriter(clone_from="/tmp/a.pdf"); w.encrypt("secret"); w.write("/tmp/b.pdf")
r = PdfReader("/tmp/b.pdf", password="secret")
print(len(r.pages), r.pages[0].extract_text().strip())`},
	{of: "requests", language: sandbox.Python, stdout: "http://x/?a=1 ConnectionError\n", code: `
import requests
print(requests.Request("GET", "http://x/", params={"a": 1}).prepare().url, end=" ")
try: requests.get("http://x/")
except requests.exceptions.ConnectionError as e: print(type(e).__name__)`},
	{of: "pyyaml jinja2 markdown", language: sandbox.Python, stdout: "{'a': [1, True]} a: 1\n<em>x</em> 3\n", code: `
import yaml, jinja2, markdown
print(yaml.safe_load("a: [1, yes]"), yaml.dump({"a": 1}), end="")
print(markdown.markdown("*x*")[3:-4], jinja2.Template("{{ a + 1 }}").render(a=2))`},
	{of: "pydantic attrs", language: sandbox.Python, stdout: "id=3 tags=['a'] 1\nA(x=1)\n", code: `
import attr
from pydantic import BaseModel, ValidationError
class M(BaseModel):
    id: int
    tags: list[str] = []
print(M(id="3", tags=["a"]), end=" ")
try: M(id="x")
except ValidationError as e: print(e.error_count())
@attr.define
class A: x: int
print(A(1))`},
	{of: "cryptography", language: sandbox.Python, stdout: "b'secret' True\n", code: `
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric import ed25519
f = Fernet(Fernet.generate_key()); key = ed25519.Ed25519PrivateKey.generate()
print(f.decrypt(f.encrypt(b"secret")), key.public_key().verify(key.sign(b"x"), b"x") is None)`},
	{of: "pytest", language: sandbox.Python, stdout: "1 failed, 1 passed\n", code: `
import pathlib, re, subprocess, sys
pathlib.Path("test_x.py").write_text("def test_a(): assert 1 + 1 == 2\ndef test_b(tmp_path): assert not tmp_path\n")
out = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True)
print(re.search(r"\d+ failed, \d+ passed", out.stdout)[0], out.stderr, end="\n", sep="")`},
	{of: "dateutil tz chardet regex more-itertools sortedcontainers tqdm", language: sandbox.Python, stdout: "2024-02-29 03:00:00 EST utf-8 ['é'] [(0, 1), (2,)] [1, 2] 3\n", code: `
import sys, chardet, pytz, regex, more_itertools, sortedcontainers
from datetime import datetime
from dateutil.parser import parse
from dateutil.relativedelta import relativedelta
from tqdm import tqdm
print(parse("31 Jan 2024 3am") + relativedelta(months=1), pytz.timezone("US/Eastern").localize(datetime(2024, 1, 1)).tzname(),
      chardet.detect("日本語テキスト".encode())["encoding"], regex.findall(r"\p{Latin}(?<=é)", "xé"),
      list(more_itertools.chunked([0, 1, 2], 2)).__len__() and [tuple(c) for c in more_itertools.chunked([0, 1, 2], 2)],
      list(sortedcontainers.SortedList([2, 1])), sum(tqdm([1, 2], file=open("/dev/null", "w"))))`},
	{of: "sqlite", language: sandbox.Python, stdout: "[('quick brown fox',)] True\n", code: `
import sqlite3
db = sqlite3.connect("/tmp/a.db")
db.execute("pragma journal_mode=wal")
db.execute("create virtual table t using fts5(body)")
db.executemany("insert into t values (?)", [("quick brown fox",), ("lazy dog",)])
db.commit()
print(db.execute("select body from t where t match 'fox'").fetchall(), db.execute("select json('[1]'), sqrt(4)").fetchone() == ("[1]", 2.0))`},
	{of: "the standard library", language: sandbox.Python, stdout: "True True True True 3.30 4 1.234,5\n", code: `
import bz2, ctypes, curses, dbm, decimal, lzma, locale, readline, ssl, uuid, xml.etree, zlib, zipfile, concurrent.futures as cf
data = b"x" * 1000
print(*(m.decompress(m.compress(data)) == data for m in (bz2, lzma, zlib)), ssl.create_default_context().cert_store_stats()["x509_ca"] > 50,
      decimal.Decimal("1.1") * 3 + decimal.Decimal("0.00"), list(cf.ThreadPoolExecutor(64).map(lambda x: x * x, [2]))[0], end=" ")
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
print(locale.format_string("%.1f", 1234.5, grouping=True))
for name in "en_US.UTF-8", "fr_FR.UTF-8", "es_ES.utf8", "C.UTF-8": locale.setlocale(locale.LC_ALL, name)`},
	{of: "time zones", language: sandbox.Python, stdout: "2024-07-01 12:00:00-04:00 True\n", code: `
import zoneinfo
from datetime import datetime
print(datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("America/New_York")), len(zoneinfo.available_timezones()) > 550)`},
	{of: "threads", language: sandbox.Python, stdout: "500.0 100\n", code: `
# Pools that a model makes as large as it likes stay below the limit of processes.
import numpy, threading
from concurrent.futures import ThreadPoolExecutor
print((numpy.ones((500, 500)) @ numpy.ones((500, 500)))[0, 0], len(list(ThreadPoolExecutor(100).map(lambda i: numpy.linalg.norm(numpy.ones(99)), range(100)))))`},

	{of: "git", language: sandbox.Bash, stdout: "* main\n  topic\n2 files\nfirst\n", code: `
git init -q r && cd r && echo a > f && git add f && git commit -qm first && git branch topic && git branch
echo b > g && git add . && git commit -qm second && git diff --stat HEAD~1 >/dev/null && git ls-files | wc -l | sed 's/$/ files/' && git log --format=%s topic
git checkout -q topic && git merge -q main && git status --porcelain && git gc -q && git fsck --no-progress`},
	{of: "sqlite3", language: sandbox.Bash, stdout: "fox\n[{\"n\":1}]\n", code: `
sqlite3 a.db "create virtual table t using fts5(b); insert into t values('fox'),('dog'); select b from t where t match 'fox'"
sqlite3 -json a.db "select count(*) n from t where t match 'dog'"`},
	{of: "jq", language: sandbox.Bash, stdin: `{"a":[{"b":1},{"b":2}]}`, stdout: "3\n", code: `jq '[.a[].b] | add'`},
	{of: "gawk mawk", language: sandbox.Bash, stdout: "b a 1970\n1.50\n", code: `echo "a b" | awk '{print $2, $1, strftime("%Y", 0)}'; echo 1.5 | mawk '{printf "%.2f\n", $1}'`},
	{of: "bc dc", language: sandbox.Bash, stdout: "3.14159265358979323844\n8\n", code: `echo "scale=20; 4*a(1)" | bc -l | head -c 22; echo; dc -e '2 3 ^ p'`},
	{of: "sed grep findutils coreutils diffutils patch", language: sandbox.Bash, stdout: "A-1\nfound\nabc\n6\n", code: `
echo a-1 | sed -E 's/([a-z])/\U\1/'; mkdir d; echo x > d/f; find d -name f -exec grep -q x {} \; -print | xargs -I{} echo found
printf 'c\nb\na\n' | sort | tr -d '\n'; echo; seq 3 | paste -sd+ | xargs -I{} bash -c 'echo $(({}))'
printf 'a\n' > o; printf 'b\n' > n; diff -u o n | patch -s o; cmp o n`},
	{of: "curl", language: sandbox.Bash, stdout: "x\n6\n", code: `echo x > f; curl -sS file:///tmp/f; curl -s http://example.com/; echo $?`},
	{of: "zip unzip xz zstd bzip2 tar gzip", language: sandbox.Bash, stdout: "data\ndata\ndata\ndata\ndata\n", code: `
echo data > f; zip -q a.zip f; unzip -p a.zip f
for z in gz xz zst bz2; do tar -caf a.tar.$z f; tar -xOf a.tar.$z f; done`},
	{of: "file", language: sandbox.Bash, stdout: "text/plain\nELF\n", code: `echo hello > a; file -b --mime-type a; file -bL /bin/ls | cut -c1-3`},
	{of: "perl", language: sandbox.Bash, stdout: "6 {\"a\":1} 2\n", code: `perl -MList::Util=sum -MJSON::PP -MPOSIX=floor -e 'print sum(1,2,3), " ", encode_json({a=>1}), " ", floor(2.5), "\n"'`},
	{of: "ffmpeg", language: sandbox.Bash, stdout: "h264,64,64,2\nmp3\nflac,8000\nwebp\n", code: `
ffmpeg -v error -f lavfi -i testsrc=s=64x64:r=2:d=1 -pix_fmt yuv420p a.mp4 && ffprobe -v error -select_streams v -count_frames -show_entries stream=codec_name,width,height,nb_read_frames -of csv=p=0 a.mp4
ffmpeg -v error -f lavfi -i sine=d=0.5 a.mp3 && ffprobe -v error -show_entries stream=codec_name -of csv=p=0 a.mp3
ffmpeg -v error -i a.mp3 -ar 8000 a.flac && ffprobe -v error -show_entries stream=codec_name,sample_rate -of csv=p=0 a.flac
ffmpeg -v error -i a.mp4 -frames:v 1 -vf "drawtext=text=日本:fontsize=12" a.webp && ffprobe -v error -show_entries stream=codec_name -of csv=p=0 a.webp`},
	{of: "xmllint openssl xxd column hexdump tree uuidgen envsubst time", language: sandbox.Bash, stdout: "2\n5d41402abc4b2a76b9719d911017c592\n00000000: 6869                                     hi\na  1\nbb 2\nhi\n36\n/tmp\n", code: `
echo '<a><b/><b/></a>' | xmllint --xpath 'count(//b)' -; echo -n hello | openssl dgst -md5 -r | cut -d' ' -f1; printf hi | xxd
printf 'a 1\nbb 2\n' | column -t -o' '; printf hi | hexdump -e '"%c"'; echo; tree --version >/dev/null; uuidgen | tr -d '\n' | wc -c; echo '$HOME' | envsubst; /usr/bin/time -o t true`},
	{of: "processes", language: sandbox.Bash, stdout: "sleep\n1\n", code: `sleep 9 & until [ "$(ps -o comm= $!)" = sleep ]; do :; done; ps -o comm= $!; kill $!; pgrep -c bash`},
	{of: "fontconfig", language: sandbox.Bash, stdout: "WenQuanYi Micro Hei\nDejaVu Sans\n", code: `fc-match -f '%{family[0]}\n' :lang=ja; fc-match -f '%{family[0]}\n' sans-serif; test ! -e .cache`},
	{of: "locale", language: sandbox.Bash, stdout: "1\n1.234,50\n", code: `printf é | wc -m; LC_ALL=de_DE.UTF-8 printf "%'.2f\n" 1234,5`},
}

func TestPrograms(t *testing.T) { runAll(t, harness.Runner(t, options(t)), programs) }

// What the model is told to be there has a program that uses it.
func TestEveryPromiseHasAProgram(t *testing.T) {
	covered := "faster-whisper " // TestWhisper
	for _, p := range programs {
		covered += p.of + " "
	}
	promised := regexp.MustCompile(`\b([a-z][a-z0-9-]*) \d+(\.\d+)*`).FindAllStringSubmatch(served(t).Environment, -1)
	if len(promised) < 30 {
		t.Fatalf("only %d packages are promised: %s", len(promised), served(t).Environment)
	}
	for _, p := range promised {
		if !strings.Contains(" "+covered, " "+p[1]+" ") {
			t.Errorf("%s is promised to the model, and no program uses it", p[1])
		}
	}
}
